"""PyTorch's own analyzer reads the dump files that frd writes, for Gloo too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from frd.flight.write import write_pickle
from frd.readers.pool import load_dump
from tests.world.daemons import JOBS, run_program, running

pytestmark = [
    pytest.mark.torch,
    pytest.mark.recorder,
    pytest.mark.xdist_group("torchfrtrace"),  # one pair for all
]

MEMBERSHIP = {"0": ("default_pg", (0, 1)), "1": ("pair", (0, 1))}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both forms of the dumps of two real Gloo ranks."""
    folder = tmp_path_factory.mktemp("raw")
    command = [sys.executable, str(JOBS / "gloo_pair.py")]
    with (
        running([*command, "0", str(folder)]) as first,
        running([*command, "1", str(folder)]) as second,
    ):
        assert [rank.wait(60) for rank in (first, second)] == [0, 0]
    return folder


def torchfrtrace(folder: Path, *options: str) -> str:
    done = run_program(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), *options]
    )
    if "name formatting error? gloo" in done.stderr:
        pytest.skip("this torchfrtrace reads no ops of Gloo: that of torch 2.13 does")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def rewritten(raw: Path, form: str, into: Path) -> Path:
    for rank in (0, 1):
        dump = load_dump(raw / f"{rank}.{form}")
        assert dump.groups == {}
        (into / f"rank_{rank}").write_bytes(write_pickle(dump, MEMBERSHIP))
    return into


@pytest.mark.parametrize("form", ["json", "pickle"])
def test_torchfrtrace_matches_gloo_collectives(raw: Path, form: str, tmp_path: Path) -> None:
    """The collectives of a healthy pair all match, where the native dumps crash the tool."""
    folder = rewritten(raw, form, tmp_path)
    output = torchfrtrace(folder).lower()
    assert "mismatch" not in output
    assert "missing" not in output


@pytest.mark.skipif(
    importlib.util.find_spec("tabulate") is None, reason="torchfrtrace -j needs tabulate"
)
def test_torchfrtrace_prints_gloo_entries(raw: Path, tmp_path: Path) -> None:
    """The table of entries shows both ranks with what they recorded."""
    output = torchfrtrace(rewritten(raw, "json", tmp_path), "-j")
    assert "Rank 0" in output
    assert output.count("broadcast(input_sizes=[[2, 3]], state=scheduled)") == 6


def test_json_and_pickle_of_one_ring_agree(raw: Path) -> None:
    """Both forms of one ring differ in the stacks alone, and the rewritten file keeps those."""
    as_json, as_pickle = load_dump(raw / "0.json"), load_dump(raw / "0.pickle")
    assert [e.frames for e in as_json.entries] == [()] * 8
    for entry in as_pickle.entries:
        assert any(frame.filename.endswith("gloo_pair.py") for frame in entry.frames)
    assert [e.record_id for e in as_json.entries] == [e.record_id for e in as_pickle.entries]
    assert as_json.status == as_pickle.status
