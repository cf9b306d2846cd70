"""What three replicas of a cluster have: a job each, and its finding, of which the others have
copies."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final
from urllib.parse import quote

from frd.model import Kind
from tests.world.http_api import closed, finding
from tests.world.http_cluster import Script, job_of

OPERATOR, READER = "o" * 32, "r" * 32
A, B, C = job_of(3), job_of(30), job_of(50)
"""Jobs of frd-0, frd-1 and frd-2."""
OPEN_A, OPEN_B = finding(1, A), dataclasses.replace(finding(2, B), kind=Kind.OOM)
CLOSED_C = closed(finding(3, C))
SCRIPTS: Final = {
    "frd-0": Script([A], [OPEN_A], [OPEN_B, CLOSED_C]),
    "frd-1": Script([B], [OPEN_B], [OPEN_A, CLOSED_C]),
    "frd-2": Script([C], [CLOSED_C], [OPEN_A, OPEN_B]),
}


def job_path(job: str) -> str:
    return f"/api/v1/jobs/{quote(job, safe='')}"


def token_file(folder: Path) -> Path:
    """With the tokens of an operator and a reader."""
    path = folder / "tokens"
    path.write_text(f"{OPERATOR} role=operator\n{READER} role=reader\n")
    path.chmod(0o600)
    return path
