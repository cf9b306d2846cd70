"""What docs, rules and help promise is what the code has, name by name."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml
from starlette.routing import Route

from frd import config
from frd.cli import BLIND, FAILED, FINDINGS_PRESENT, USAGE, cli
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.cluster import INSTALL
from frd.do_now.table import RUNBOOKS, TABLE
from frd.engine.evidence.questions import MAX_RANKS, Occasion
from frd.engine.views import MemoryView as AttemptMemory
from frd.model import Confidence, Kind, RankState, Reason, SeriesInfo, SeriesKind
from frd.service.http.routes import create_app
from frd.service.metrics.table import METRICS
from frd_agent.cli import cli as agent_cli
from frd_agent.config import Config as AgentConfig
from frd_agent.counters import Counters
from frd_agent.memory.gpu.nvml import DeviceReading
from frd_agent.memory.watch import MemoryView
from frd_agent.metrics import AgentCollector
from frd_agent.node_time import NodeTime
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.route import Endpoint
from frd_agent.uplink.uplinks import Uplinks
from scripts import runbooks
from tests.docs import parsers
from tests.docs.pages import commands
from tests.world.http_api import Client as ApiClient
from tests.world.http_api import Service, job_view
from tests.world.views import rise

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(DOCS.rglob("*.md")),
]
RULES = sorted((ROOT / "helm/frd/rules").glob("*.yaml"))
DASHBOARDS = sorted((ROOT / "helm/frd/dashboards").glob("*.json"))
METRIC = re.compile(r"\bfrd_[a-z_]+\b")
HISTOGRAM_PARTS = ("_bucket", "_count", "_sum")
NOT_METRICS = {"frd_agent", "frd_tap"}
PROGRAMS = {"frd": cli, "frd-agent": agent_cli}


def text(page: Path) -> str:
    return page.read_text("utf-8")


def sections(page: Path) -> dict[str, str]:
    """Second-level headings with the text below each."""
    parts = re.split(r"^## (.*)$", text(page), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def command(line: str) -> click.Command:
    """The command that ``frd findings``, ``frd findings export`` or ``frd-agent run`` is."""
    program, *names = line.split()
    found: click.Command | None = PROGRAMS[program]
    for name in names:
        assert isinstance(found, click.Group), line
        found = found.get_command(click.Context(found), name)
        assert found is not None, line
    assert found is not None
    return found


def lines(above: str) -> Iterator[str]:
    """Every command below this one, each before its own."""
    group = command(above)
    if isinstance(group, click.Group):
        for name in group.commands or group.list_commands(click.Context(group)):
            yield f"{above} {name}"
            yield from lines(f"{above} {name}")


LINES = [line for program in PROGRAMS for line in lines(program)]


def options(of: click.Command) -> set[str]:
    return {flag for option in of.params for flag in option.opts if flag.startswith("-")}


def written_options(page_text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", page_text))


# -- commands ----------------------------------------------------------------------------------


def test_a_folder_holds_at_most_thirteen_modules() -> None:
    """A package that outgrows this needs a second level, or fewer modules."""
    modules = [*ROOT.glob("frd/**/*.py"), *ROOT.glob("agents/**/*.py")]
    sizes = Counter(str(module.parent.relative_to(ROOT)) for module in modules)
    del sizes["frd/v1"]  # generated
    assert [folder for folder, size in sizes.items() if size > 13] == []


def test_every_command_has_its_section() -> None:
    """docs/commands.md and the command table list the same commands in the same order."""
    assert list(sections(DOCS / "commands.md")) == LINES


@pytest.mark.parametrize("line", LINES)
def test_a_commands_options_are_those_of_its_section(line: str) -> None:
    """The first column of the section's table names every option of the command and no other."""
    rows = re.findall(r"^\| (`-.*?) \|", sections(DOCS / "commands.md")[line], re.MULTILINE)
    assert written_options(" ".join(rows)) == options(command(line))


@pytest.mark.parametrize("line", LINES)
def test_a_command_explains_itself(line: str) -> None:
    """Each option has a help text, and the command's own begins with a sentence."""
    assert re.match(r"[A-Z].*?[.;:]", command(line).help or "")
    for option in command(line).params:
        if isinstance(option, click.Option):
            assert option.help, option.opts


def test_the_demo_page_names_every_scenario() -> None:
    """Scenarios in docs and code are the same."""
    row = re.search(r"`--scenario NAME` \|(.*)\|", sections(DOCS / "commands.md")["frd demo"])
    assert row is not None
    assert re.findall(r"`([a-z_]+)`", row[1]) == list(SCENARIOS)


def examples_of(line: str) -> list[str]:
    """The command lines below "Examples:" of a command's help."""
    _, _, below = (command(line).epilog or "").partition("Examples:\n")
    return [example.strip() for example in below.splitlines()]


@pytest.mark.parametrize("line", [*PROGRAMS, *LINES])
def test_every_help_ends_in_examples_that_could_be_typed(line: str) -> None:
    """One at least is of this command; what else it takes to type one is the shell's."""
    found = examples_of(line)
    assert any(example.startswith(line.removesuffix(" show")) for example in found) or (
        f"$({line}" in " ".join(found)
    )
    for example in found:
        for words in commands(example):
            while words and Path(words[0]).name not in PROGRAMS:
                words.pop(0)
            if words:
                parsers.frd(words)


# -- the API -----------------------------------------------------------------------------------


def routes() -> dict[str, Route]:
    """What the service answers, as its documentation's headings spell it."""
    app = create_app(None)  # type: ignore[arg-type]
    found = [route for route in app.routes if isinstance(route, Route)]
    return {
        f"{method} {re.sub(r':[a-z]+}', '}', route.path)}": route
        for route in found
        for method in (route.methods or set()) - {"HEAD"}
    }


def test_every_endpoint_is_documented() -> None:
    """docs/api.md has a section for each route and for nothing else."""
    assert set(sections(DOCS / "api.md")) - {"Compatibility"} == set(routes())


def test_every_parameter_of_an_endpoint_is_documented() -> None:
    """The table of a section names what the route reads from the query, and no more."""
    endpoints = sections(DOCS / "api.md")
    read = re.compile(r"""(?:query_params\.get\(|(?:number|time|choice)\(request, )"(\w+)\"""")
    for heading, route in routes().items():
        _, _, table = endpoints[heading].partition("| parameter | |")
        documented = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)
        assert set(documented) == set(read.findall(inspect.getsource(route.endpoint))), heading


def keys(value: object) -> set[str]:
    """All names of keys in a JSON value; findings have a page of their own."""
    match value:
        case dict():
            inner = [keys(part) for key, part in value.items() if key != "findings"]
            return {str(key) for key in value}.union(*inner)
        case list():
            return set().union(*map(keys, value))
    return set()


def test_every_key_of_the_api_is_documented(tmp_path: Path) -> None:
    """docs/api.md has every key of jobs, a job and findings."""
    view = job_view("train")
    used = np.ones(1, np.int64)
    memory = AttemptMemory(
        [SeriesInfo(0, SeriesKind.HOST_USED)],
        used,
        used,
        np.ones((1, 4), np.int64),
        rises=[rise(0)],
    )
    service = Service(tmp_path, [replace(view, memory=memory)])
    client = ApiClient(service)
    found = {
        key
        for path in ("/api/v1/jobs", "/api/v1/jobs/train", "/api/v1/findings", "/api/v1/history")
        for key in keys(client.get(path).json) - set(RankState)
    }
    service.store.close()
    assert len(found) > 50
    assert {key for key in found if not re.search(rf"\b{key}\b", text(DOCS / "api.md"))} == set()


def test_every_exit_code_is_documented() -> None:
    """docs/commands.md begins with a table of them."""
    codes = re.findall(r"^\| (\d+) \|", text(DOCS / "commands.md"), re.MULTILINE)
    assert [int(code) for code in codes] == [0, FAILED, USAGE, FINDINGS_PRESENT, BLIND]


# -- configuration -----------------------------------------------------------------------------


KEY = re.compile(r"^\| `([a-z_.]+)` \| (.*?) \|", re.MULTILINE)
PLACES = ("data_dir", "run_dir")  # these defaults depend on the user


def agrees(documented: str, value: object) -> bool:
    """Does the default column say this value?"""
    if isinstance(value, bool):
        return documented == f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return float(documented.strip("`")) == value
    return documented == (f"`{value}`" if value else "none")


def test_every_key_of_the_service_is_documented_with_its_default() -> None:
    """docs/configuration.md lists the keys of the model, in order, with the defaults in effect."""
    page, _, _ = text(DOCS / "configuration.md").partition("\n## The agent\n")
    one_webhook = sections(DOCS / "configuration.md")["`[[notify]]`: findings to a webhook"]
    rows = KEY.findall(page.replace(one_webhook, ""))
    assert [key for key, _ in rows] == sorted(config.keys(), key=lambda key: "." in key)
    defaults = config.as_dict(config.Config())
    for key, documented in rows:
        value: Any = defaults
        for part in key.split("."):
            value = value[part]
        assert key in PLACES or agrees(documented, value), key


def test_every_key_of_a_webhook_is_documented() -> None:
    """The section of `[[notify]]` lists the keys of a target in order."""
    section = sections(DOCS / "configuration.md")["`[[notify]]`: findings to a webhook"]
    rows = re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE)
    assert rows == [field.name for field in fields(config.NotifyTarget)]


def test_every_key_of_the_agent_is_documented_with_its_default() -> None:
    """The agent's section does the same for `frd_agent.config`."""
    rows = KEY.findall(sections(DOCS / "configuration.md")["The agent"])
    model = AgentConfig.model_fields
    assert [key for key, _ in rows] == list(model)
    for key, documented in rows:
        assert key in PLACES or agrees(documented, model[key].default), key


def test_the_example_file_and_variables_of_the_docs_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What docs/configuration.md shows is accepted, and both forms say the same."""
    page = text(DOCS / "configuration.md")
    (toml,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "frd.toml").write_text(toml)
    by_file = config.load(tmp_path / "frd.toml")
    for line in re.findall(r"^export (.*)$", page, re.MULTILINE):
        name, _, value = shlex.split(line)[0].partition("=")
        monkeypatch.setenv(name, value)
    assert config.load() == by_file


# -- metrics and alerts ------------------------------------------------------------------------


def agent_metrics() -> dict[str, tuple[str, ...]]:
    """What an agent exports, by exposed name."""
    stats = Counters(dumps=Counter({"fill": 1}))
    dictionary = Dictionary()
    uplinks = Uplinks(
        *(Endpoint(("127.0.0.1:1",)), 1, dictionary, stats, NodeTime(stats)),
        hello=lambda: NotImplemented,
        in_flight=lambda job: (),
        on_request=lambda stream, request: None,
    )
    kinds = [SeriesInfo(0, kind, "GPU-1") for kind in SeriesKind]
    view = MemoryView((DeviceReading("GPU-1", 1, 2, {}),), dict.fromkeys(kinds, 1))
    collector = AgentCollector(stats, uplinks, lambda: view, lambda number: ("job", number))
    return {
        metric.name + ("_total" if metric.type == "counter" else ""): tuple(
            dict.fromkeys(
                label for sample in metric.samples for label in sample.labels if label != "le"
            )
        )
        for metric in collector.collect()
    }


def known_metrics() -> set[str]:
    names = {*METRICS, *agent_metrics()}
    return names | {name + part for name in names for part in HISTOGRAM_PARTS}


@pytest.mark.parametrize("page", [*RULES, *DASHBOARDS, *PAGES], ids=lambda path: path.name)
def test_every_metric_that_is_named_exists(page: Path) -> None:
    """A rule or a page that names a metric which nothing exports would be silent for ever."""
    assert set(METRIC.findall(text(page))) - NOT_METRICS <= known_metrics()


@pytest.mark.parametrize(
    ("section", "exported"),
    [
        ("The service", {name: spec.labels for name, spec in METRICS.items()}),
        ("The agent", agent_metrics()),
    ],
)
def test_every_metric_is_documented_with_its_labels(
    section: str, exported: dict[str, tuple[str, ...]]
) -> None:
    """docs/metrics.md and the code agree."""
    rows = re.findall(
        r"^\| `(frd_\w+)(?:\{([a-z_,]+)\})?`", sections(DOCS / "metrics.md")[section], re.MULTILINE
    )
    documented = {name: tuple(labels.split(",")) if labels else () for name, labels in rows}
    assert documented == exported


def test_runbooks_have_the_steps_of_findings() -> None:
    """`python -m scripts.runbooks` changes nothing, and each case of the table is in a runbook."""
    for name in runbooks.CASES:
        page = text(DOCS / f"runbooks/{name}.md")
        assert runbooks.written(name, page) == page, "run: python -m scripts.runbooks"
    assert {case for cases in runbooks.CASES.values() for case in cases} == TABLE.keys()


def test_every_metric_is_in_a_panel_or_a_rule() -> None:
    """What frd exports is shown or watched somewhere."""
    used = {name for page in (*RULES, *DASHBOARDS) for name in METRIC.findall(text(page))}
    used |= {name.removesuffix(part) for name in used for part in HISTOGRAM_PARTS}
    assert METRICS.keys() | agent_metrics().keys() <= used


def test_the_runbook_of_a_kind_is_that_of_its_alerts() -> None:
    """An alert about findings of a kind has the name that findings and messages link to."""
    rules = re.split(r"- alert: ", "".join(map(text, RULES)))[1:]
    alerts = {
        (kind, rule.split()[0])
        for rule in rules
        for kinds in re.findall(r'frd_finding_critical{kind=~?"([a-z_|]+)"', rule)
        for kind in kinds.split("|")
    }
    assert alerts == {*RUNBOOKS.items()} - {(Kind.TELEMETRY_GAP, RUNBOOKS[Kind.TELEMETRY_GAP])}


def test_every_alert_has_a_row_and_a_runbook() -> None:
    """Rules, docs/metrics.md and docs/runbooks name the same alerts."""
    alerts = {name for rules in RULES for name in re.findall(r"- alert: (\w+)", text(rules))}
    urls = {url for rules in RULES for url in re.findall(r"runbook_url: (\S+)", text(rules))}
    rows = re.findall(r"^\| `(Frd\w+)` \|", text(DOCS / "metrics.md"), re.MULTILINE)
    assert alerts == set(rows) == {page.stem for page in (DOCS / "runbooks").glob("*.md")}
    assert urls == {f"http://127.0.0.1:9374/runbooks/{alert}.md" for alert in alerts}


PAGE_OF_FINDING = "findings/{{ $labels.finding }}"
PAGE_OF_JOB = 'jobs/{{ $labels.job | urlquery | reReplaceAll "[+]" "%20" }}'


def test_an_alert_leads_to_the_page_of_what_it_is_about() -> None:
    """To that of its finding if it has one, else to that of its job; alerts about frd itself, whose
    label `job` may be that of the scrape, lead to the overview."""
    rules = [
        rule
        for path in RULES
        for group in yaml.safe_load(text(path))["groups"]
        for rule in group["rules"]
    ]
    of_jobs = {metric for metric, spec in METRICS.items() if "job" in spec.labels}
    for rule in rules:
        aggregated = re.search(r"by \((.*?)\)", rule["expr"])
        labels = set(aggregated[1].split(", ")) if aggregated else set()
        if "finding" in labels:
            page = PAGE_OF_FINDING
        elif "job" in labels and set(METRIC.findall(rule["expr"])) <= of_jobs:
            page = PAGE_OF_JOB
        elif "job" in labels and "by (node)" in rule["expr"]:  # of a job, or of a node
            page = f"{{{{ if $labels.job }}}}{PAGE_OF_JOB}{{{{ end }}}}"
        else:
            page = ""
        assert rule["annotations"]["page_url"] == f"http://127.0.0.1:9374/{page}", rule["alert"]


# -- findings, links, the tap ------------------------------------------------------------------


def test_every_kind_reason_and_confidence_is_explained() -> None:
    """docs/findings.md has a word on each value that the JSON may carry."""
    page = text(DOCS / "findings.md")
    for value in (*Kind, *Reason, *Confidence):
        assert f"`{value.value}`" in page, value


def test_every_occasion_of_a_question_is_explained() -> None:
    """docs/how-it-decides.md lists on which occasions ranks are asked, and how many at most."""
    page = text(DOCS / "how-it-decides.md")
    table = page.partition("| occasion |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", table) == list(Occasion)
    assert f"at most {MAX_RANKS} ranks" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of this repository."""
    for target in re.findall(r"\]\(([^)#]+)\)", text(page)):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_advice_for_clusters_names_the_packages_of_their_extra() -> None:
    extras = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    packages = [re.split(r"[^\w-]", one)[0] for one in extras["cluster"]]
    assert f"pip install {' '.join(packages)}" == INSTALL


def test_the_tap_imports_the_standard_library_only() -> None:
    """The file runs alone in any training process; torch it finds there, or does nothing."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(text(ROOT / "agents/frd_agent/tap.py"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            imported.add((node.module or "").partition(".")[0])
    assert imported <= set(sys.stdlib_module_names) | {"torch"}
