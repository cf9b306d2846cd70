/**
 * The page of one job: state, findings, the map of groups and ranks, the wait-for graph, memory, ops.
 */
import { html, useMemo, useState } from "../../vendor/standalone.module.js";
import { useFetched } from "../core/fetched.js";
import { figure, list, record, text } from "../core/format.js";
import { useTitle } from "../core/frame.js";
import { Nodes } from "../overview/health.js";
import { HeatMapView } from "./heatmap_view.js";
import { Groups, Notable, Ops, Rises } from "./job_tables.js";
import { CutNote, Ended, Failed, Findings } from "../overview/overview.js";
import { Boundary, Counts, Facts, Pace, Tag, blamed, fates } from "../core/parts.js";
import { Memory, RankPanel } from "./rank_panel.js";
import { jobApi } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Waits } from "./waits.js";

export function Job({ name, query }) {
  const attempt = query.get("attempt");
  const job = useStore((now) => now.job);
  const error = useStore((now) => now.jobError);
  const open = useStore((now) => now.open);
  const jobs = useStore((now) => now.jobs);
  const [rank, setRank] = useState(null);
  useTitle(text(name));
  const findings = useMemo(() => open?.filter((one) => one.job === name && (!attempt || String(one.attempt) === attempt)) ?? null, [open, name, attempt]);
  const blame = useMemo(() => blamed(findings), [findings]);
  const title = html`<h1 tabindex="-1">Job ${text(name)}${job?.attempt || attempt ? html` <span class="muted">attempt ${text(job?.attempt ?? attempt)}</span>` : ""}</h1>`;
  if (!job) {
    return html`<main id="main">${title}
      ${error ? html`<${Past} name=${name} error=${error} />` : html`<p class="loading">Loading</p>`}
    </main>`;
  }
  const calm = job.ended === true && !job.failure;
  return html`<main id="main">
    ${title}
    ${error ? html`<p class="box warn" role="alert">${error}</p>` : ""}
    ${job.failure
      ? html`<p class="box bad"><strong>This job failed:</strong> <${Failed} failure=${job.failure} /></p>`
      : job.ended ? html`<p class="box"><strong>This job has ended.</strong></p>` : ""}
    <${Boundary} what="state" on=${job}><${State} job=${job} blame=${blame} calm=${calm} /><//>
    <${Part} id="findings" title="Open findings" on=${findings}>
      <${CutNote} />
      ${findings ? html`<${Findings} findings=${findings} none="No open findings." jobless=${true} />` : html`<p class="loading">Loading</p>`}
      <p class="small"><a href=${`/history?${new URLSearchParams({ job: name })}`}>Closed findings of this job</a></p>
    <//>
    <${Boundary} what="what ended" on=${jobs}><${Ended} jobs=${jobs} job=${name} first=${findings?.[0] ?? null} /><//>
    ${warningsOf(jobs, name).map((one, i) => html`<p key=${i} class="box"><strong>Warning:</strong> ${one}</p>`)}
    <${Part} id="waits" title="Ranks that wait, and for what" on=${job}><${Waits} job=${job} /><//>
    <${Part} id="map" title="Groups and ranks" on=${job.map}>
      <div class="with-panel">
        <${MapOf} name=${name} attempt=${attempt} etag=${job.map} choose=${setRank} blame=${blame} />
        ${rank === null ? "" : html`<${RankPanel} job=${name} attempt=${attempt} rank=${rank} at=${job.at} blame=${blame} close=${() => setRank(null)} />`}
      </div>
    <//>
    <${Part} id="notable" title="Notable ranks" on=${job}><${Notable} ranks=${list(job.notable_ranks)} choose=${setRank} blame=${blame} calm=${calm} /><//>
    ${list(record(job.memory).series).length ? html`<${Part} id="memory" title="Memory nearest to its capacity" on=${job}>
      <${Memory} series=${list(job.memory.series).map(record)} />
      <p class="muted small">Of ${figure(job.memory.ranks)} ranks with memory series.</p><//>` : ""}
    ${list(job.rises).length ? html`<${Part} id="rises" title="Memory that rose" on=${job}><${Rises} rises=${list(job.rises)} findings=${findings} /><//>` : ""}
    ${list(job.ops).length ? html`<${Part} id="ops" title="Ops" on=${job}><${Ops} ops=${list(job.ops)} /><//>` : ""}
    ${list(job.groups).length ? html`<${Part} id="groups" title="Process groups" on=${job}><${Groups} groups=${list(job.groups)} more=${job.more_groups} /><//>` : ""}
    ${list(job.nodes).length ? html`<${Part} id="nodes" title="Nodes and clocks" on=${job}><${Nodes} nodes=${list(job.nodes)} more=${job.more_nodes} /><//>` : ""}
  </main>`;
}

const warningsOf = (jobs, name) => list(record(jobs).warnings).map(record).filter((one) => one.job === name).map((one) => text(one.text));

/** A section with its own error boundary. */
const Part = ({ id, title, on, children }) => html`<section aria-labelledby=${`${id}-head`}>
  <h2 id=${`${id}-head`}>${title}</h2>
  <${Boundary} what=${title} on=${on}>${children}<//>
</section>`;

/** A job that the service watches no more: what is kept of it are its findings. */
function Past({ name, error }) {
  const { data } = useFetched(`/api/v1/findings?${new URLSearchParams({ job: name, limit: "50" })}`, 1);
  const findings = list(data?.findings);
  const ways = html`<p><a href="/">Overview</a> <a href=${`/history?${new URLSearchParams({ job: name })}`}>History of this job</a></p>`;
  if (!findings.length) return html`<p class="box bad" role="alert">${error}</p>${ways}`;
  return html`<p class="box">This job has ended, and is no longer watched. Its findings are kept.</p>
    <section aria-labelledby="past-head"><h2 id="past-head">Findings of this job</h2><${Findings} findings=${findings} none="" closed=${true} jobless=${true} /></section>${ways}`;
}

const State = ({ job, blame, calm }) => html`<${Facts} rows=${[
  ["State", html`<${Tag} value=${job.state} />`],
  ["Ranks", figure(job.world_size)],
  ["Ranks by state", html`<${Counts} counts=${fates(job.ranks, blame)} calm=${calm} />`],
  ["Collectives", html`<${Pace} pace=${job.pace} />`],
  ["Lost entries", job.gap_entries ? html`<strong class="warn">${figure(job.gap_entries)}</strong>` : ""],
]} />`;

/** Reads the map when its version has changed, and draws it. */
function MapOf({ name, attempt, etag, choose, blame }) {
  const query = `view=map${attempt ? `&attempt=${encodeURIComponent(attempt)}` : ""}`;
  const answer = useFetched(jobApi(name, query), etag);
  return html`<div class="map">
    ${answer.error ? html`<p class="box warn">${answer.error}</p>` : ""}
    ${answer.data
      ? html`<${Boundary} what="map" on=${answer.data}><${HeatMapView} data=${answer.data} choose=${choose} suspects=${blame.suspects} /><//>
          ${answer.data.more_rows ? html`<p class="muted">and ${figure(answer.data.more_rows)} more groups</p>` : ""}`
      : answer.error ? "" : html`<p class="loading picture-place">Loading</p>`}
  </div>`;
}
