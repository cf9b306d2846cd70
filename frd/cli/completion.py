"""What shells complete from the service: names of jobs, ids of findings.

A shell waits for the answer: the service gets a second, and after an error there are no proposals.
"""

from __future__ import annotations

import shlex

import click

from frd.cli.options import client_of
from frd.errors import FrdError

_TIMEOUT_S = 1.0


def job_names(of: click.Context, _: click.Parameter, typed: str) -> list[str]:
    return _known(of, "/api/v1/jobs", "jobs", "job", typed)


def finding_ids(of: click.Context, _: click.Parameter | None, typed: str) -> list[str]:
    return _known(of, "/api/v1/findings", "findings", "id", typed)


def _known(of: click.Context, path: str, key: str, name: str, typed: str) -> list[str]:
    """Not what a shell would have to quote: a job may have any name, also that of a command."""
    try:
        known = [str(one[name]) for one in client_of(of, _TIMEOUT_S).get(path)[key]]
    except (FrdError, click.ClickException, LookupError, TypeError):
        return []
    return [one for one in known if one.startswith(typed) and shlex.quote(one) == one]
