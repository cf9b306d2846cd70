"""`frd analyze --html`: one page to share, whatever jobs and files are called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from frd.cli import FAILED, FINDINGS_PRESENT
from frd.cli.screens.html_page import MAX_ROWS, page
from frd.flight.entry import Entry, Frame
from frd.model import Activity, GroupInfo
from frd.offline.analysis.analyze import Analysis, analyze
from tests.unit.cli.shell import Shell
from tests.unit.cli.test_analyze import dumps, entry
from tests.world.traces import Folder, Row

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


def hang(world: int = 4) -> Analysis:
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
    seen = Seen(page(hang(), [Path("dumps")]))
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
    text = page(hang(), [Path("dumps")])
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
    text = page(hang(MAX_ROWS + 3), [Path("dumps")])
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
