"""Builders of panels that the dashboards `fleet`, `job`, `health` and `cluster` share.

They set what Grafana's defaults get wrong: units, the text for missing data, links from a job's
name to its overview, and a description for every panel. Queries limit the number of series
themselves (``topk``, ``bottomk``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Final

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLink,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

RUNBOOKS: Final = "http://127.0.0.1:9374/runbooks/"
"""As in the rules; the chart replaces it with its own address."""
FINDINGS: Final = "http://127.0.0.1:9374/findings/"
"""The service's pages of findings, by id; replaced in the same way."""
TAG: Final = "frd"
DATASOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
JOB_UID: Final = "frd-job"
"""Uid of the dashboard to which the name of a job links."""
STAT_HEIGHT: Final = 4
GRAPH_HEIGHT: Final = 7


def once(metric: str, *labels: str) -> str:
    """`metric` by `labels`, once: at a takeover two replicas may have the series for one scrape."""
    return f"max by ({', '.join(labels)}) ({metric})"


Panel = stat.Panel | table.Panel | timeseries.Panel
Queries = Mapping[str, str]
"""PromQL by legend."""


def dashboard(
    uid: str, title: str, description: str, *, all_jobs: bool, panels: Sequence[Panel]
) -> board.Dashboard:
    """The panels, left to right, row by row, below the variables ``datasource`` and ``job``."""
    datasource = board.DatasourceVariable("datasource").label("Data source").type("prometheus")
    job = (
        board.QueryVariable("job")
        .label("Job")
        .description("The training job")
        .datasource(DATASOURCE)
        .query("label_values(frd_agents_expected, job)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if all_jobs:
        job = job.multi(True).include_all(True).all_value(".*")
        job = job.current(VariableOption(selected=True, text="All", value="$__all"))
    others = board.DashboardLink("frd").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    runbooks = board.DashboardLink("Runbooks").type(DashboardLinkType.LINK).url(RUNBOOKS)
    built = (
        board.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .variables([datasource, job])
        .links([others.keep_time(True).include_vars(True), runbooks.target_blank(True)])
        .annotation(_alerts())
    )
    for number, panel in enumerate(panels, 1):
        built = built.with_panel(panel.id(number).datasource(DATASOURCE))
    return built


def _alerts() -> board.AnnotationQuery:
    """Marks on every graph where an alert of the job began to fire."""
    return (
        board.AnnotationQuery()
        .name("Alerts")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color("red")
        .expr('ALERTS{alertname=~"Frd.*", alertstate="firing", job=~"${job:regex}|"}')
    )


def number(
    title: str,
    description: str,
    queries: Queries,
    *,
    width: int,
    unit: str = "none",
    nothing: str = "0",
    bad_from: float | None = None,
    name: bool = False,
    runbook: str = "",
) -> stat.Panel:
    """The current value of each query; red from `bad_from` on. `name`: show the legend instead."""
    steps = [Threshold(value=None, color="green")]
    if bad_from is not None:
        steps.append(Threshold(value=bad_from, color="red"))
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .height(STAT_HEIGHT)
        .span(width)
        .unit(unit)
        .no_value(nothing)
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(
            BigValueColorMode.BACKGROUND if bad_from is not None else BigValueColorMode.NONE
        )
        .thresholds(board.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .links(_runbook(runbook))
    )
    if name:
        panel = panel.text_mode(BigValueTextMode.NAME)
    for query in _asked(queries):
        panel = panel.with_target(query.instant())
    return panel


def findings(
    title: str,
    description: str,
    selector: str,
    *,
    width: int,
    nothing: str,
    height: int = GRAPH_HEIGHT,
    with_job: bool = False,
    runbook: str = "",
) -> table.Panel:
    """A table of the open findings that `selector` selects: a row per suspect, worst first."""
    columns = ["severity", "Value", "job", "kind", "rank", "node", "reason", "waits_for", "finding"]
    hidden = ["Time"] if with_job else ["Time", "job"]
    panel = _table(title, description, width, height, nothing, runbook)
    panel = panel.with_target(_cells("A", _open_findings(selector)))
    panel = _organized(panel, columns, hidden, {"Value": "open for"})
    panel = panel.override_by_name("open for", [_set("unit", "s")])
    panel = panel.override_by_name("severity", _SEVERITY)
    panel = panel.override_by_name("finding", _TO_FINDING)
    if with_job:
        panel = panel.override_by_name("job", _TO_JOB)
    worst_first = ["severity", "open for"]
    return panel.sort_by(
        [common.TableSortByFieldState().display_name(c).desc(c != "severity") for c in worst_first]
    )


def _open_findings(selector: str) -> str:
    """Each suspect of each open finding, and each finding without one.

    The value is the finding's age in seconds, its severity is a label.
    """
    of = "job, kind, finding"
    opened = f"max by ({of}) (frd_finding_opened_timestamp_seconds{{{selector}}})"
    critical = f"max by ({of}) (frd_finding_critical{{{selector}}})"
    graded = " or ".join(
        f'label_replace(time() - {opened} and {critical} == {value}, "severity", "{word}", "", "")'
        for value, word in enumerate(("warning", "critical"))
    )
    suspects = f"max by ({of}, rank, node, reason, waits_for) (frd_suspect{{{selector}}})"
    return f"{suspects} * on ({of}) group_left (severity) ({graded}) or on ({of}) ({graded})"


@dataclass(frozen=True, slots=True)
class Column:
    """A number for each job: a query `by (job)`, its unit, and the value from which it is red."""

    query: str
    unit: str = "none"
    bad_from: float | None = None


def jobs(
    title: str,
    description: str,
    columns: Mapping[str, Column],
    *,
    width: int,
    height: int,
    nothing: str,
    worst: str,
) -> table.Panel:
    """A row for each job, which links to its overview; the rows with the largest `worst` first."""
    panel = _table(title, description, width, height, nothing, "")
    titles = dict(zip((f"Value #{ref}" for ref in ascii_uppercase), columns, strict=False))
    for ref, column in zip(ascii_uppercase, columns.values(), strict=False):
        panel = panel.with_target(_cells(ref, column.query))
    panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel = _organized(panel, ["job", *titles], ["Time"], titles)
    for name, column in columns.items():
        properties = [_set("unit", column.unit)]
        if column.bad_from is not None:
            steps = [{"value": None, "color": "text"}, {"value": column.bad_from, "color": "red"}]
            properties.append(_set("thresholds", {"mode": "absolute", "steps": steps}))
            properties.append(_set("custom.cellOptions", {"type": "color-text"}))
        panel = panel.override_by_name(name, properties)
    panel = panel.override_by_name("job", _TO_JOB)
    return panel.sort_by([common.TableSortByFieldState().display_name(worst).desc(True)])


def _set(name: str, value: object) -> DynamicConfigValue:
    """A property of one column."""
    return DynamicConfigValue(id_val=name, value=value)


_SEVERITY: Final = [
    _set("custom.cellOptions", {"type": "color-background"}),
    _set(
        "mappings",
        [
            {
                "type": "value",
                "options": {
                    "critical": {"color": "red", "index": 0},
                    "warning": {"color": "orange", "index": 1},
                },
            }
        ],
    ),
]
_TO_JOB: Final = [
    _set(
        "links",
        [
            {
                "title": "Job overview",
                "url": f"/d/{JOB_UID}?var-job=${{__value.raw}}"
                "&${datasource:queryparam}&${__url_time_range}",
            }
        ],
    )
]

_TO_FINDING: Final = [
    _set(
        "links",
        [
            {
                "title": "Page of the finding",
                "url": f"{FINDINGS}${{__value.raw}}",
                "targetBlank": True,
            }
        ],
    )
]


def _table(
    title: str, description: str, width: int, height: int, nothing: str, runbook: str
) -> table.Panel:
    return (
        table.Panel()
        .title(title)
        .description(description)
        .height(height)
        .span(width)
        .no_value(nothing)
        .links(_runbook(runbook))
    )


def _cells(ref_id: str, query: str) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .expr(query)
        .instant()
        .format(PromQueryFormat.TABLE)
        .datasource(DATASOURCE)
        .ref_id(ref_id)
    )


def _organized(
    panel: table.Panel, order: Sequence[str], hidden: Sequence[str], titles: Mapping[str, str]
) -> table.Panel:
    options = {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {column: place for place, column in enumerate(order)},
        "renameByName": dict(titles),
    }
    return panel.with_transformation(DataTransformerConfig(id_val="organize", options=options))


def graph(
    title: str,
    description: str,
    queries: Queries,
    *,
    width: int,
    unit: str,
    nothing: str = "no data",
    stacked: bool = False,
    runbook: str = "",
) -> timeseries.Panel:
    """Lines over time, from zero; the legend has their last values, the largest first."""
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.RIGHT if width >= 12 else LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull"])
        .sort_by("Last *")
        .sort_desc(True)
    )
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .height(GRAPH_HEIGHT)
        .span(width)
        .unit(unit)
        .no_value(nothing)
        .axis_soft_min(0)
        .fill_opacity(60 if stacked else 8)
        .show_points(VisibilityMode.NEVER)
        .legend(legend)
        .tooltip(tooltip)
        .links(_runbook(runbook))
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for query in _asked(queries):
        panel = panel.with_target(query.range())
    return panel


def _asked(queries: Queries) -> Sequence[prometheus.Dataquery]:
    return [
        prometheus.Dataquery()
        .expr(query)
        .legend_format(legend)
        .datasource(DATASOURCE)
        .ref_id(ref_id)
        for ref_id, (legend, query) in zip(ascii_uppercase, queries.items(), strict=False)
    ]


def _runbook(alert: str) -> list[Builder[DashboardLink]]:
    if not alert:
        return []
    link = board.DashboardLink(f"Runbook {alert}").type(DashboardLinkType.LINK)
    return [link.url(f"{RUNBOOKS}{alert}.md").target_blank(True)]
