/**
 * One rank of a job: its state, what it waits in, its groups, its memory and the findings that suspect it.
 */
import { html, useEffect, useRef } from "../../vendor/standalone.module.js";
import { bytes, count, duration, figure, list, number, record, text } from "../core/format.js";
import { useFetched } from "../core/fetched.js";
import { Age, Boundary, Facts, Fate, FindingLink, Spark, Table } from "../core/parts.js";
import { jobApi } from "../core/router.js";
import { labelOf } from "./heatmap.js";

/** @param {{job: string, attempt: string | null, rank: number, at: string, blame: any, close: () => void}} props `at`: read again when it changes */
export function RankPanel({ job, attempt, rank, at, blame, close }) {
  const head = useRef(null);
  useEffect(() => head.current?.focus(), [rank]);
  const query = `view=rank&rank=${rank}${attempt ? `&attempt=${encodeURIComponent(attempt)}` : ""}`;
  const shown = useFetched(jobApi(job, query), at);
  return html`<aside class="panel" aria-labelledby="rank-head" onKeyDown=${(event) => event.key === "Escape" && close()}>
    <h3 id="rank-head" tabindex="-1" ref=${head}>Rank ${rank} <button type="button" onClick=${close}>Close</button></h3>
    ${shown.error ? html`<p class="box warn" role="alert">${shown.error}</p>` : ""}
    ${shown.data ? html`<${Boundary} what=${`rank ${rank}`} on=${shown.data}><${Detail} data=${shown.data} blame=${blame} /><//>` : shown.error ? "" : html`<p class="loading">Loading</p>`}
  </aside>`;
}

function Detail({ data, blame }) {
  const one = record(data.rank);
  const groups = list(data.groups).map(record);
  const series = list(record(data.memory).series).map(record);
  const findings = list(data.findings).map(record);
  const exit = record(one.exit);
  return html`
    <${Facts} rows=${[
      ["State", html`<${Fate} one=${one} blame=${blame} />`],
      ["Detail", text(one.detail)],
      ["Node", text(one.node)],
      ["Process", one.pid ? `pid ${text(one.pid)}` : ""],
      ["Waits in", one.waiting_in ? `${text(one.waiting_in)}${number(one.waiting_s) ? `, for ${duration(one.waiting_s)}` : ""}` : ""],
      ["Known up to", one.as_of ? html`<${Age} at=${one.as_of} /> ago` : ""],
      ["Unwatched since", text(one.unwatched_since)],
      ["Exit", exitText(exit)],
    ]} />
    ${findings.length ? html`<h4>Suspected by</h4>${findings.map((finding, i) => html`<p key=${i}><${FindingLink} finding=${finding} /></p>`)}` : ""}
    ${groups.length ? html`<h4>Groups</h4><${Table} label="Groups of the rank" numbers=${[1, 2, 3, 4]} head=${["Group", "Size", "Enqueued", "Completed", "Highest of all", "State"]}
      rows=${groups.map((group) => [text(group.group), figure(group.size), seq(group.enqueued), seq(group.completed), seq(group.highest), html`<span class=${["missing", "stuck", "gone"].includes(group.state) ? "bad strong" : ""}>${labelOf(group.state)}</span>`])} />
      ${data.more_groups ? html`<p class="muted">and ${count(data.more_groups, "more group")}</p>` : ""}` : ""}
    ${series.length ? html`<h4>Memory</h4><${Memory} series=${series} ranks=${false} />` : ""}
  `;
}

const seq = (value) => (number(value) === null || value < 0 ? "–" : `#${value}`);

/** How a process ended, from the fields of the API. */
export function exitText(exit) {
  if (!Object.keys(exit).length) return "";
  const how = [
    text(exit.exception), exit.where ? `(${text(exit.where)})` : "", exit.signal ? `signal ${text(exit.signal)}` : "",
    number(exit.status) === null ? "" : `status ${exit.status}`, text(exit.note),
  ].filter(Boolean).join(" ");
  return `${text(exit.kind)}${how ? `: ${how}` : ""}`;
}

/** Memory series nearest to their capacity, as bars and curves. @param {{series: any[], ranks?: boolean}} props */
export function Memory({ series, ranks = true }) {
  const rows = series.map((one) => {
    const [used, capacity] = [number(one.used_bytes), number(one.capacity_bytes)];
    const share = used !== null && capacity ? Math.min(1, Math.max(0, used / capacity)) : null;
    const row = [
      `rank ${text(one.rank)}`,
      html`${text(one.kind)} <span class="muted device">${text(one.device)}</span>`,
      html`<span class="usage">${share === null ? "" : html`<meter min="0" low="0.85" high="0.95" max="1" optimum="0" value=${share} title=${`${(share * 100).toFixed(1)} %`}></meter>`}
        <span class="nowrap">${share === null ? "" : `${(share * 100).toFixed(0)} % `}${bytes(used)}${capacity ? ` of ${bytes(capacity)}` : ""}</span></span>`,
      html`<${Spark} values=${one.recent_bytes} label="recent use" top=${capacity} />`,
    ];
    return ranks ? row : row.slice(1);
  });
  const head = ["Rank", "Memory", "Used", "Recent"];
  return html`<${Table} label="Memory" stack=${ranks} head=${ranks ? head : head.slice(1)} rows=${rows} />`;
}
