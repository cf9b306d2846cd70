"""The shipped dashboards are as generated, and complete. Their queries run in tests/e2e."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.dashboards.__main__ import FOLDER, generated, stale
from tests.world.daemons import run_program
from tests.world.prometheus import LOCAL, ROOT

DASHBOARDS = {name: json.loads(text) for name, text in generated().items()}
NAMED = {
    f"{name}: {panel['title']}": panel
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
}
PANELS = [pytest.param(panel, id=name) for name, panel in NAMED.items()]
TABLES = [pytest.param(panel, id=name) for name, panel in NAMED.items() if panel["type"] == "table"]


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


def test_the_committed_files_are_as_generated() -> None:
    """helm/frd/dashboards is what scripts/dashboards makes."""
    assert list(FOLDER.glob("*.json"))
    assert stale() == []


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_explains_itself(panel: dict[str, Any]) -> None:
    """Each has a description, a unit, a text for no data, and names for its lines."""
    assert panel["description"].endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["noValue"]
    assert panel["type"] == "table" or defaults["unit"]
    for target in panel["targets"]:
        assert panel["type"] != "timeseries" or target["legendFormat"]
        assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_fits_on_three_screens(name: str) -> None:
    """Rows are full, nothing overlaps, and all of it is 40 units high or less."""
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
    assert height <= 40
    assert len(taken) == 24 * height


def cell_links(panel: dict[str, Any], column: str) -> list[str]:
    """Where the cells of a column lead."""
    return [
        link["url"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == column
        for setting in override["properties"]
        if setting["id"] == "links"
        for link in setting["value"]
    ]


def test_the_name_of_a_job_leads_to_a_dashboard_that_there_is() -> None:
    """A cell's link names the uid of a dashboard and a variable that it has."""
    panels = DASHBOARDS["fleet.json"]["panels"]
    leads = [url for panel in panels for url in cell_links(panel, "job")]
    assert len(leads) == 2
    by_uid = {dashboard["uid"]: dashboard for dashboard in DASHBOARDS.values()}
    assert len(by_uid) == len(DASHBOARDS)
    for url in leads:
        found = re.match(r"/d/([\w-]+)\?var-(\w+)=", url)
        assert found, url
        variables = by_uid[found[1]]["templating"]["list"]
        assert found[2] in {variable["name"] for variable in variables}


@pytest.mark.parametrize("panel", TABLES)
def test_the_id_of_a_finding_leads_to_its_page(panel: dict[str, Any]) -> None:
    """Every table with findings links their ids to the service, at the address that the chart
    replaces."""
    (organize,) = (t["options"] for t in panel["transformations"] if t["id"] == "organize")
    expected = (
        [f"{LOCAL}/findings/${{__value.raw}}"] if "finding" in organize["indexByName"] else []
    )
    assert cell_links(panel, "finding") == expected


@pytest.mark.parametrize("panel", TABLES)
def test_a_tables_columns_are_those_of_its_queries(panel: dict[str, Any]) -> None:
    """Every renamed or formatted column exists."""
    (organize,) = (t["options"] for t in panel["transformations"] if t["id"] == "organize")
    refs = [target["refId"] for target in panel["targets"]]
    values = ["Value"] if len(refs) == 1 else [f"Value #{ref}" for ref in refs]
    assert list(organize["renameByName"]) == values
    shown = {organize["renameByName"].get(name, name) for name in organize["indexByName"]}
    shown -= set(organize["excludeByName"])
    for override in panel["fieldConfig"]["overrides"]:
        assert override["matcher"]["options"] in shown
    assert {column["displayName"] for column in panel["options"]["sortBy"]} <= shown


def query(name: str, title: str, ref_id: str = "A") -> str:
    """The query of a panel, for all jobs."""
    (found,) = (
        target["expr"]
        for panel in DASHBOARDS[name]["panels"]
        if panel["title"] == title
        for target in panel["targets"]
        if target["refId"] == ref_id
    )
    assert isinstance(found, str)
    return found.replace("$job", ".*")


def series(name: str, value: str, **labels: str) -> dict[str, str]:
    text = ",".join(f'{key}="{of}"' for key, of in labels.items())
    return {"series": f"{name}{{{text}}}", "values": value}


LONG = {"job": "a", "kind": "stall", "finding": "f1"}
NEW = {"job": "a", "kind": "stall", "finding": "f2"}
SUSPECT = {"rank": "3", "node": "n0", "reason": "cpu_stuck", "waits_for": "file_read"}
SERIES = [
    series("frd_agents_expected", "1x20", job="a"),
    series("frd_agents_expected", "1x20", job="b"),
    # A lasting finding that names a rank, from the service before and after a restart.
    series("frd_finding_opened_timestamp_seconds", "40x20", **LONG, instance="before"),
    series("frd_finding_opened_timestamp_seconds", "40x20", **LONG, instance="after"),
    series("frd_finding_critical", "1x20", **LONG, instance="after"),
    series("frd_suspect", "1x20", **LONG, **SUSPECT, instance="after"),
    # A new finding without a suspect.
    series("frd_finding_opened_timestamp_seconds", "90x20", **NEW, instance="after"),
    series("frd_finding_critical", "0x20", **NEW, instance="after"),
    # Two ranks share a GPU of one node; another node has a GPU of the same name.
    *(
        series(f"frd_gpu_memory_{what}_bytes", value, instance=node, gpu="g")
        for node, used in (("n0", "60x20"), ("n1", "95x20"))
        for what, value in (("used", used), ("total", "100x20"))
    ),
    series("frd_rank_gpu_memory_bytes", "0x20", job="a", rank="0", gpu="g", instance="n0"),
    series("frd_rank_gpu_memory_bytes", "20x20", job="a", rank="1", gpu="g", instance="n0"),
]
ASKED: list[tuple[str, dict[str, float]]] = [
    (
        query("fleet.json", "Open findings"),
        {
            "job='a', kind='stall', finding='f1', severity='critical', "
            "rank='3', node='n0', reason='cpu_stuck', waits_for='file_read'": 60,
            "job='a', kind='stall', finding='f2', severity='warning'": 10,
        },
    ),
    (query("fleet.json", "Jobs", "B"), {"job='a'": 1, "job='b'": 0}),
    (query("fleet.json", "Jobs", "L"), {"job='a'": 0.6}),
]


@pytest.mark.prometheus
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent (prometheus)")
def test_tables_show_severity_age_and_the_fullest_gpu(tmp_path: Path) -> None:
    """The answers of the longer queries at 100 s, by Prometheus' own engine."""
    expected = [
        {
            "expr": expression,
            "eval_time": "100s",
            "exp_samples": [
                {"labels": "{" + labels.replace("'", '"') + "}", "value": value}
                for labels, value in samples.items()
            ],
        }
        for expression, samples in ASKED
    ]
    test = {"interval": "10s", "input_series": SERIES, "promql_expr_test": expected}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
    command = ["promtool", "test", "rules", str(tmp_path / "test.yaml")]
    done = run_program(command)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", DASHBOARDS)
def test_links_lead_to_runbooks(name: str) -> None:
    """A link has the address that the chart replaces, and a page that exists."""
    found = list(links(DASHBOARDS[name]))
    assert found
    for url in found:
        page = re.fullmatch(rf"{re.escape(LOCAL)}/runbooks/(\w+\.md)?", url)
        assert page, url
        assert (ROOT / "docs/runbooks" / (page[1] or "")).exists(), url
