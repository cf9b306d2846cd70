"""Tokens and certificates: what they let their bearer do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import cast

import pytest

from frd.errors import ConfigError
from frd.rpc import Context
from frd.service.access.admission import Admission
from frd.service.access.grants import EVERYTHING, Grant, Role, Tokens
from frd.service.access.refusals import Refusals
from tests.world.virtual_time import in_virtual_time

ALL, AGENT, OPERATOR = "a" * 32, "b" * 32, "c" * 32


def tokens(path: Path, *lines: str) -> Tokens:
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return Tokens(path)


def test_a_token_alone_may_do_everything(tmp_path: Path) -> None:
    """One token in the file: its bearer may stream, read and dump for every job."""
    known = tokens(tmp_path / "tokens", "# ours", "", ALL)
    grant = known.grant(f"Bearer {ALL}")
    assert grant is not None
    assert all(grant.may(role) for role in Role)
    assert grant.may_report("any")
    assert known.grant(f"bearer  {ALL} ") == grant


@pytest.mark.parametrize("header", [None, "", "Bearer", f"Basic {ALL}", ALL, f"Bearer {ALL}x"])
def test_others_may_do_nothing(tmp_path: Path, header: str | None) -> None:
    """No header, another scheme and another token: there is no grant."""
    assert tokens(tmp_path / "tokens", ALL).grant(header) is None


def test_limits_behind_a_token(tmp_path: Path) -> None:
    """An agent's token is for its jobs only; an operator may read, a reader may not dump."""
    known = tokens(
        tmp_path / "tokens",
        f"{AGENT} role=agent job=llama job=a%20b  # of one team",
        f"{OPERATOR} role=operator",
    )
    agent, operator = known.grant(f"Bearer {AGENT}"), known.grant(f"Bearer {OPERATOR}")
    assert agent is not None
    assert operator is not None
    assert (agent.may(Role.AGENT), agent.may(Role.READER)) == (True, False)
    assert [agent.may_report(job) for job in ("llama", "a b", "other")] == [True, True, False]
    assert (operator.may(Role.OPERATOR), operator.may(Role.READER)) == (True, True)
    assert not operator.may(Role.AGENT)


def test_a_token_has_a_name(tmp_path: Path) -> None:
    """Percent-encoded, as jobs are; a certificate that narrows its jobs leaves it."""
    line = f"{OPERATOR} name=Ann%20B%C3%A9 role=operator"
    grant = tokens(tmp_path / "tokens", line).grant(f"Bearer {OPERATOR}")
    assert grant is not None
    assert grant.name == grant.narrowed(["urn:frd:job:c"]).name == "Ann B\u00e9"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "contains no token"),
        (f"{ALL} name=", "not a limit"),
        (f"{ALL} name=a%0Ab", "not a limit"),
        (f"{ALL} name=a name=b", "not a limit"),
        (f"{ALL} name={'a' * 101}", "not a limit"),
        ("short", "5 characters"),
        (f"{ALL} jobs=x", "not a limit"),
        (f"{ALL} role=king", "not a limit"),
        (f"{ALL} job=x", "add role=agent"),
        (f"{ALL} job=x role=agent role=reader", "add role=agent"),
    ],
)
def test_a_bad_line_is_an_error(tmp_path: Path, line: str, said: str) -> None:
    """The error gives the number of the bad line, but not its token."""
    with pytest.raises(ConfigError, match=r"^auth\.token_file: ") as caught:
        tokens(tmp_path / "tokens", line)
    assert said in str(caught.value)
    assert ALL not in str(caught.value)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """The error names the key. A file that is too large is an error because, cut off, a token could
    lose the words that limit it."""
    with pytest.raises(ConfigError, match=r"^auth\.token_file: .*nowhere: No such file"):
        Tokens(tmp_path / "nowhere")
    line = f"{AGENT} role=agent job=a"
    with pytest.raises(ConfigError, match=r"^auth\.token_file: .*over 4194304 bytes"):
        tokens(tmp_path / "tokens", *[line] * (4 * 1024 * 1024 // len(line)))


def test_tokens_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new token is valid immediately, the old one no longer; a broken file changes nothing."""
    path = tmp_path / "tokens"
    known = tokens(path, ALL)
    _replace(path, AGENT)
    assert known.grant(f"Bearer {ALL}") is None
    assert known.grant(f"Bearer {AGENT}") is not None
    _replace(path, "short")
    assert known.grant(f"Bearer {AGENT}") is not None
    assert known.grant(f"Bearer {AGENT}") is not None
    path.unlink()
    assert known.grant(f"Bearer {AGENT}") is not None
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2  # once for each change, not for each question


def _replace(path: Path, text: str) -> None:
    other = path.with_name("next")
    other.write_text(text)
    os.replace(other, path)


def test_a_certificate_narrows() -> None:
    """Job names in a certificate limit the token's jobs; other names have no effect."""
    names = ["node-7.example", "urn:frd:job:a%2Fb", "urn:frd:job:c"]
    assert EVERYTHING.narrowed(["node-7.example"]) == EVERYTHING
    assert EVERYTHING.narrowed(names).jobs == frozenset({"a/b", "c"})
    agent = Grant(frozenset({Role.AGENT}), frozenset({"c", "d"}))
    assert agent.narrowed(names).jobs == frozenset({"c"})
    assert agent.narrowed(["urn:frd:job:x"]).jobs == frozenset()


class Call:
    """A call of one host."""

    def peer(self) -> str:
        return "ipv4:10.0.0.1:5000"


@pytest.mark.parametrize("reason", ["token", "limit", "version", "order", "fault"])
@in_virtual_time
async def test_a_peer_that_is_refused_again_and_again(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent without a token, or of a release that cannot report to a cluster, tries again every
    few seconds until a person acts: it is logged once a minute, with how often it was not."""
    admission, call = Admission(None, 10), cast(Context, Call())
    for at_s in range(0, 125, 5):
        admission.warn(call, reason, f"refused after {at_s} s")
        await asyncio.sleep(5)
    more = " (11 more since the last such line)"
    lines = ["refused after 0 s", f"refused after 60 s{more}", f"refused after 120 s{more}"]
    assert caplog.messages == lines


@in_virtual_time
async def test_hosts_without_number_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """An attacker with a prefix of IPv6 addresses uses each address once: a thousand hosts a minute
    have a separate line each, all others share one; a minute later others have theirs."""
    refusals = Refusals()
    for host in range(3_000):
        refusals.warn(f"2001:db8::{host:x}", "token", "refused")
    assert len(caplog.messages) == 1_001
    await asyncio.sleep(60)
    caplog.clear()
    refusals.warn("2001:db8::", "token", "refused")
    refusals.warn("192.0.2.1", "token", "refused")
    assert caplog.messages == ["refused", "refused"]
