"""`frd analyze` as people and other programs use it, on folders of dumps as torch writes them."""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

import frd
from frd.cli import FAILED, FINDINGS_PRESENT, USAGE
from frd.cli.screens.finding_panel import finding_panel
from frd.cli.screens.html_page import MAX_ROWS, page
from frd.flight.entry import Dump, Entry, Frame
from frd.flight.write import write_pickle
from frd.forms import finding_json
from frd.model import Activity, GroupInfo
from frd.offline.analysis.analyze import Analysis, analyze
from frd.offline.output.export import export
from frd.store.new_path import check_new
from tests.unit.cli.shell import Printed, Shell
from tests.unit.offline.written_tables import rows_in
from tests.world.traces import Folder, Row

TRACES = Path(__file__).parents[4] / "shared" / "traces"
T0 = 1_700_000_000_000_000_000
WORLD = GroupInfo("0", "default_pg", (0, 1, 2, 3))
PAIR = GroupInfo("7", "TP_0", (0, 1))
STACK = (
    Frame(name="all_reduce", filename="/venv/torch/distributed/distributed_c10d.py", line=2_800),
    Frame(name="step", filename="/job/train.py", line=88),
)


def entry(seq: int, group: GroupInfo = WORLD, *, done: bool = True, **fields: Any) -> Entry:
    created = T0 + seq * 1_000_000
    return msgspec.structs.replace(
        Entry(
            record_id=seq - 1,
            process_group=(group.name, group.desc),
            profiling_name="nccl:all_reduce",
            collective_seq_id=seq,
            time_created_ns=created,
            input_sizes=((4, 8),),
            output_sizes=((4, 8),),
            input_dtypes=("Float",),
            output_dtypes=("Float",),
            state="completed" if done else "scheduled",
            retired=done,
            time_discovered_completed_ns=created + 500_000 if done else 0,
            frames=STACK,
        ),
        **fields,
    )


Entries = Callable[[int], Sequence[Entry]]


def dumps(
    folder: Path, entries: Entries, ranks: Sequence[int] = range(4), world: GroupInfo = WORLD
) -> Path:
    folder.mkdir()
    for rank in ranks:
        groups = {g.name: g for g in (world, PAIR) if rank in g.ranks}
        dump = Dump("2.10", entries=tuple(entries(rank)), groups=groups)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(write_pickle(dump))
    return folder


def hang(rank: int) -> Sequence[Entry]:
    """Rank 2 never comes to the third; ranks 0 and 1 have another group as well."""
    own = [entry(1), entry(2)] + ([] if rank == 2 else [entry(3, done=False)])
    if rank < 2:
        own.append(entry(1, PAIR, record_id=3, profiling_name="nccl:broadcast"))
    return own


def analyzed(shell: Shell, *words: str | Path) -> Printed:
    return shell("analyze", *words, code=FINDINGS_PRESENT)


# -- the first screen --------------------------------------------------------------------------


def test_the_first_screen_says_who_why_and_who_waits(hanging: Path, shell: Shell) -> None:
    """Verdict, first cause, evidence with the user's frame, victims, what next; in 80 columns."""
    screen = shell.drawn("analyze", hanging, code=FINDINGS_PRESENT).out
    for fact in (
        "Rank 2 is alive, but has not joined\nholds up 3 ranks in all_reduce #3 of default_pg\n",
        "rank 2: cpu_stuck",
        "train.py:88 in step",
        "0-1,3 (3 ranks)",
        "4 of 4 ranks, 2 groups in use, 13 entries, 3 of them in flight",
        "2023-11-14 22:13:20",
        "--entries --ranks 2 --stacks",
    ):
        assert fact in screen, fact
    assert max(map(len, screen.splitlines())) <= 80
    assert "distributed_c10d" not in screen


def test_no_fault_is_said_and_is_exit_code_0(tmp_path: Path, shell: Shell) -> None:
    """Everything matched and completed."""
    folder = dumps(tmp_path / "dumps", lambda rank: [entry(1), entry(2)])
    assert "no communication fault" in shell("analyze", folder).out


def test_what_is_missing_is_said(tmp_path: Path, shell: Shell) -> None:
    """A rank without a dump and a file that is none are on the first screen; no rank is accused."""
    folder = dumps(tmp_path / "dumps", hang, ranks=(0, 1, 3))
    (folder / "nccl_trace_rank_2").write_bytes(b"\x80\x02garbage")
    screen = analyzed(shell, folder).out
    assert "ranks without a readable dump: 2" in screen
    assert "warning" in screen
    assert "nccl_trace_rank_2" in screen
    assert "cpu_stuck" not in screen


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path, shell: Shell) -> None:
    """A group that is called like an escape sequence is shown, not obeyed."""
    evil = GroupInfo("0", "\x1b[2Jpg", (0, 1, 2, 3))

    def entries(rank: int) -> Sequence[Entry]:
        return [entry(1, evil)] + ([] if rank == 2 else [entry(2, evil, done=False)])

    folder = dumps(tmp_path / "dumps", entries, world=evil)
    shown = analyzed(shell, folder).out + analyzed(shell, folder, "--entries", "--collectives").out
    assert "\x1b" not in shown
    assert "\\x1b[2Jpg" in shown


# -- tables ------------------------------------------------------------------------------------


def test_entries_are_a_table_a_rank(hanging: Path, shell: Shell) -> None:
    """Rows in recording order; what the finding is about is marked; columns stand in line."""
    lines = analyzed(shell, hanging, "--entries", "--ranks", "1").lines
    assert lines[0].startswith("! stuck")
    assert lines[1] == f"rank 1: 4 entries, format 2.10, {hanging}/nccl_trace_rank_1"
    header, *rows = lines[2:]
    assert [row.split()[0] for row in rows] == ["0", "1", "!", "3"]
    assert "0.500" in rows[0]
    assert rows[2].endswith("scheduled  [4x8] Float")
    at = header.index("op ")
    assert [row[at:].split()[0] for row in rows] == ["all_reduce"] * 3 + ["broadcast"]


def test_entries_of_some_groups(hanging: Path, shell: Shell) -> None:
    """Groups by pattern; ranks without any keep their heading, ranks without a dump get a word."""
    lines = analyzed(shell, hanging, "--entries", "--groups", "TP_*", "--ranks", "1-2,9").lines
    assert "rank 9: no dump" in lines
    assert sum("broadcast" in line for line in lines) == 1
    assert not any("all_reduce" in line for line in lines)
    assert any(line.startswith("rank 2: 0 of 2 entries") for line in lines)


def test_each_stack_once(hanging: Path, shell: Shell) -> None:
    """Rows carry the stack's number, the frames follow the table."""
    text = analyzed(shell, hanging, "--entries", "--ranks", "0", "--stacks").out
    assert text.count("    train.py:88 in step\n") == 1
    assert "distributed_c10d.py:2800 in all_reduce" in text


def test_collectives_are_a_line_each(hanging: Path, shell: Shell) -> None:
    """Who joined, who completed, who is missing."""
    lines = analyzed(shell, hanging, "--collectives").lines
    assert lines[0] == "4 collectives"
    rows = {tuple(line.split()[:2]): line for line in lines[2:]}
    assert rows["default_pg", "1"].endswith("ok")
    assert "3/4" in rows["default_pg", "3"]
    assert rows["default_pg", "3"].endswith("2 missing")
    assert analyzed(shell, hanging, "--collectives", "--ranks", "3").out.startswith("3 of 4")


# -- other programs ----------------------------------------------------------------------------


def test_json(hanging: Path, shell: Shell) -> None:
    """One object: findings as everywhere, ranks, groups, warnings; tables when asked for."""
    document = analyzed(shell, hanging, "--json").json
    assert document["findings"][0]["suspects"][0]["rank"] == 2
    assert document["ranks"]["0"] == {"entries": 4, "first_record_id": 0, "last_record_id": 3}
    assert {group["group"] for group in document["groups"]} == {"default_pg", "TP_0"}
    assert document["warnings"] == []
    assert "entries" not in document
    more = analyzed(shell, hanging, "--json", "--entries", "--collectives").json
    assert len(more["entries"]) == 13
    assert more["collectives"][2]["missing_ranks"] == [2]


def test_one_analysis_in_three_formats(hanging: Path, tmp_path: Path) -> None:
    """JSON, SQLite and Parquet hold the same entries, and each entry leads to its collective."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    files = {ending: tmp_path / f"out.{ending}" for ending in ("json", "sqlite", "parquet")}
    analysis = frd.load(hanging)
    for file in files.values():
        export(analysis, file)

    document = json.loads(files["json"].read_bytes())
    db = sqlite3.connect(files["sqlite"])
    table = parquet.read_table(files["parquet"])
    assert json.loads(table.schema.metadata[b"frd"]) == analysis.to_json()
    assert len(document["entries"]) == table.num_rows == 13
    by_arrow = table.drop(["stack"]).to_pylist()
    assert by_arrow == document["entries"]
    assert table["stack"][0].as_py()[1] == "train.py:88 in step"

    by_sql = rows_in(files["sqlite"], "entries")
    assert list(by_sql[0]) == list(document["entries"][0])
    assert [row["op"] for row in by_sql] == [row["op"] for row in by_arrow]
    assert json.loads(by_sql[0]["input_sizes"]) == [[4, 8]]
    missing = "select distinct c.missing_ranks from entries e join collectives c "
    missing += "on e.collective_id = c.id where e.collective_seq_id = 3"
    assert db.execute(missing).fetchall() == [("[2]",)]
    assert db.execute("select count(*) from memberships").fetchone() == (6,)
    finding = json.loads(db.execute("select finding from findings").fetchone()[0])
    assert finding == finding_json(analysis.findings[0])
    assert finding_panel(finding)
    db.close()


def test_files_are_written_beside_the_screen_and_never_over(
    hanging: Path, tmp_path: Path, shell: Shell
) -> None:
    """--output and --timeline make new files and say so on stderr; an existing one is refused."""
    output, timeline = tmp_path / "a.sqlite", tmp_path / "t.pftrace.gz"
    arguments = ("analyze", hanging, "-o", output, "--timeline", timeline)
    printed = shell(*arguments, code=FINDINGS_PRESENT)
    assert "rank 2" in printed.out
    assert str(output) in printed.err
    assert str(timeline) in printed.err
    assert gzip.decompress(timeline.read_bytes())[:1] == b"\x0a"
    before = output.read_bytes()
    assert "nothing is overwritten" in shell(*arguments, code=FAILED).err
    assert output.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sqlite", "dumps", timeline.name]


def test_a_file_that_cannot_be_finished_leaves_nothing(
    hanging: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up half way: the error is printed and there is no half file."""
    analysis = frd.load(hanging)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("frd.offline.output.export.json_bytes", full)
    with pytest.raises(frd.errors.StoreError, match="No space left"):
        export(analysis, tmp_path / "a.json")
    check_new(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["dumps"]


def test_parquet_without_pyarrow_says_what_to_install(
    hanging: Path,
    tmp_path: Path,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The extra is named before any dump is read."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    printed = shell("analyze", hanging, "--output", tmp_path / "a.parquet", code=USAGE)
    assert printed.out == ""
    assert "pip install pyarrow" in printed.err


# -- torchft, mistakes -------------------------------------------------------------------------


def test_replicas_of_torchft(tmp_path: Path, shell: Shell) -> None:
    """Each replica numbers its ranks from 0; the transform keeps two replicas apart."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    group = GroupInfo("0", "default_pg", (0, 1))
    for rank in range(4):
        entries = [entry(1, group)] + ([] if rank == 2 else [entry(2, group, done=rank < 2)])
        dump = Dump("2.10", entries=tuple(entries), groups={"0": group})
        (folder / f"rank{rank}").write_bytes(write_pickle(dump))
    document = analyzed(shell, folder, "--json", "--transform-ft", "--group-world-size", "2").json
    assert [group["ranks"] for group in document["groups"]] == [[0, 1], [2, 3]]
    (finding,) = document["findings"]
    assert [suspect["rank"] for suspect in finding["suspects"]] == [2]
    assert finding["victims"] == [3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "1"], "add --entries or --collectives"),
        (["--groups", "0"], "add --entries or --collectives"),
        (["--stacks"], "add --entries"),
        (["--entries", "--ranks", "x"], "write ranks and ranges"),
        (["--entries", "--ranks", "7-9"], "there are dumps of 0-3"),
        (["--entries", "--groups", "nope"], "there are TP_0, default_pg"),
        (["--output", "a.csv"], "use .json, .parquet or .sqlite"),
        (["--transform-ft"], "give both or neither"),
        (["--group-world-size", "2"], "give both or neither"),
        (["--group-world-size", "0"], "x>=1"),
    ],
)
def test_wrong_usage_is_one_line(
    hanging: Path, shell: Shell, arguments: list[str], words: str
) -> None:
    """Exit code 2 and a line that says what to type."""
    printed = shell("analyze", hanging, *arguments, code=USAGE)
    assert printed.out == ""
    assert words in printed.error


def test_a_folder_without_dumps_is_a_failure(tmp_path: Path, shell: Shell) -> None:
    """Empty, absent, or full of something else: one line, exit code 1."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("hello")
    for folder in (tmp_path / "absent", other):
        assert str(folder) in shell("analyze", folder, code=FAILED).error


# -- `frd analyze --html`: one page to share, whatever jobs and files are called -------------------


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\u202e"
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "article",
    "dl", "dt", "dd", "div", "strong", "span", "pre", "details", "summary", "ul", "li", "table",
    "thead", "tbody", "tr", "th", "td", "footer", "code",
}  # fmt: skip
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class"}


class Seen(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def hung(world: int = 4) -> Analysis:
    """Rank 2 is in a line of its program while the others wait."""
    folder = Folder(standing={2: Activity(("data.py:7 in load", "train.py:88 in step"))})
    folder.group("0", range(world))
    for rank in range(world):
        rows = [Row("nccl:all_reduce", 1)]
        if rank != 2:
            rows.append(Row("nccl:all_reduce", 2, state="scheduled"))
        folder.rank(rank, *rows)
    return analyze(folder.trace())


def test_the_page_says_what_the_screen_says() -> None:
    """Verdict, suspect with stack, victims folded, groups, ranks and files; well-formed."""
    seen = Seen(page(hung(), [Path("dumps")]))
    assert not seen.open
    text = " ".join(" ".join(seen.text).split())
    for fact in (
        "holds up 3 ranks in all_reduce #2 of default_pg",
        "Rank 2 : alive, but has not joined (high confidence)",
        "data.py:7 in load train.py:88 in step",
        "3 ranks only wait 0-1,3 (3 ranks)",
        "default_pg 4 0-3 (4 ranks) 1 1 0",
        "first cause",
        "rank_3",
        "frd analyze dumps",
    ):
        assert fact in text, fact
    assert "cpu_stuck" not in text


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    """No script, no link, no image, no address; and its policy forbids them."""
    text = page(hung(), [Path("dumps")])
    seen = Seen(text)
    assert seen.tags <= TAGS
    assert seen.attributes <= ATTRIBUTES
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "://" not in text


def test_a_wait_that_is_not_proven_is_on_the_page() -> None:
    """No finding: the page says what would be one if it lasted."""
    folder = Folder().group("0", range(2))
    folder.rank(0, Row("nccl:all_reduce", 1), taken=(600, 610))
    rows = (Row("nccl:all_reduce", 1), Row("nccl:all_reduce", 2, at=1, state="scheduled"))
    folder.rank(1, *rows, taken=(600, 610))
    text = page(analyze(folder.trace()), [Path("dumps")])
    assert "<strong>Not proven:</strong> rank 0 had kept rank 1 waiting for 0.6 s" in text
    assert 'class="verdict warn"' in text


def test_many_ranks_are_cut() -> None:
    """The table of a huge job ends somewhere and says so."""
    text = page(hung(MAX_ROWS + 3), [Path("dumps")])
    assert text.count("<tr>") < MAX_ROWS + 10
    assert "… 3 more" in text


def test_hostile_names_stay_text(tmp_path: Path, shell: Shell) -> None:
    """Job, group, op, stack and files are called like markup: the page shows them as they are."""
    group = GroupInfo("0", EVIL, (0, 1))
    odd: dict[str, Any] = {
        "profiling_name": f"nccl:{EVIL}",
        "frames": (Frame(name=EVIL, filename=f"/job/{EVIL}", line=3),),
    }

    def entries(rank: int) -> Sequence[Entry]:
        return [entry(1, group, **odd), entry(2, group, done=False, **odd)][: 2 - rank]

    folder = dumps(tmp_path / EVIL.replace("/", ""), entries, (0, 1), group)
    (folder / "nccl_trace_rank_2").write_bytes(b"\x80\x02broken")
    out = tmp_path / "page.html"
    assert str(out) in shell("analyze", folder, "--html", out, code=FINDINGS_PRESENT).err
    text = out.read_text(encoding="utf-8")
    seen = Seen(text)
    assert not seen.open
    assert seen.tags <= TAGS
    assert seen.attributes <= ATTRIBUTES
    assert "<script" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "alert(1)" in "".join(seen.text)

    before = out.read_bytes()
    assert "nothing is overwritten" in shell("analyze", folder, "--html", out, code=FAILED).err
    assert out.read_bytes() == before
    assert json.loads(json.dumps(text))  # no character that text cannot carry
