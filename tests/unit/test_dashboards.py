"""The shipped dashboards: as generated, and whole. Their queries run in tests/e2e."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.dashboards.__main__ import FOLDER, generated, stale
from tests.prometheus import LOCAL, ROOT

DASHBOARDS = {name: json.loads(text) for name, text in generated().items()}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
]


def links(node: Any) -> Iterator[str]:
    """Every URL below a node."""
    if isinstance(node, dict):
        if node.get("type") == "link":
            yield node["url"]
        for inner in node.values():
            yield from links(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from links(inner)


def test_the_committed_files_are_fresh() -> None:
    """helm/frd/dashboards is what scripts/dashboards makes."""
    assert list(FOLDER.glob("*.json"))
    assert stale() == []


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_explains_itself(panel: dict[str, Any]) -> None:
    """Each says what it means, in which unit, and what an empty one means; lines have names."""
    assert panel["description"].endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["noValue"]
    assert panel["type"] == "table" or defaults["unit"]
    for target in panel["targets"]:
        assert panel["type"] != "timeseries" or target["legendFormat"]
        assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_fits_on_two_screens(name: str) -> None:
    """Rows are full, nothing overlaps, and all of it is 32 units high or less."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    height = 1 + max(y for _, y in taken)
    assert height <= 32
    assert len(taken) == 24 * height


@pytest.mark.parametrize("name", DASHBOARDS)
def test_links_lead_to_runbooks(name: str) -> None:
    """A link is the address that the chart replaces, and a page that exists."""
    found = list(links(DASHBOARDS[name]))
    assert found
    for url in found:
        page = re.fullmatch(rf"{re.escape(LOCAL)}/runbooks/(\w+\.md)?", url)
        assert page, url
        assert (ROOT / "docs/runbooks" / (page[1] or "")).exists(), url
