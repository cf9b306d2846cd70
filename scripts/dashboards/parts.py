"""What frd's dashboards have in common: one look, one way to ask, one way to link.

The panels themselves stand in `job` and `health`. Everything that Grafana would decide by itself
and decide badly is decided here: units, what stands in place of nothing, how many series a panel
may draw (queries say ``topk`` and ``bottomk``), and that every panel says what it means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

RUNBOOKS: Final = "http://127.0.0.1:9374/runbooks/"
"""As in the rules; the chart puts its own address in."""
TAG: Final = "frd"
DATASOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
STAT_HEIGHT: Final = 4
GRAPH_HEIGHT: Final = 7

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
    """What is so now, one number a query; red from `bad_from` on. `name`: its legend instead."""
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


def rows(
    title: str,
    description: str,
    query: str,
    columns: Sequence[str],
    *,
    width: int,
    nothing: str,
    runbook: str = "",
) -> table.Panel:
    """The labels of the series that there are now, in this order."""
    options = {
        "excludeByName": {"Time": True, "Value": True},
        "indexByName": {column: place for place, column in enumerate(columns)},
        "renameByName": {},
    }
    return (
        table.Panel()
        .title(title)
        .description(description)
        .height(GRAPH_HEIGHT)
        .span(width)
        .no_value(nothing)
        .with_target(
            prometheus.Dataquery()
            .expr(query)
            .instant()
            .format(PromQueryFormat.TABLE)
            .datasource(DATASOURCE)
            .ref_id("A")
        )
        .with_transformation(DataTransformerConfig(id_val="organize", options=options))
        .links(_runbook(runbook))
    )


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
        for ref_id, (legend, query) in zip("ABCDEFGH", queries.items(), strict=False)
    ]


def _runbook(alert: str) -> list[Builder[DashboardLink]]:
    if not alert:
        return []
    link = board.DashboardLink(f"Runbook {alert}").type(DashboardLinkType.LINK)
    return [link.url(f"{RUNBOOKS}{alert}.md").target_blank(True)]
