/**
 * The first page: is a job stuck, which rank is the first cause, and does frd see everything?
 *
 * The verdict uses states, counts and sentences of the API. It never names a cause by itself.
 */
import { html, useEffect, useMemo, useState } from "../../vendor/standalone.module.js";
import { Health } from "./health.js";
import { age, count, figure, list, record, text } from "../core/format.js";
import { useTitle } from "../core/frame.js";
import {
  Age, Boundary, Copy, Counts, DoNow, FindingLink, JobLink, LongTable, Pace, Ranks, Said, Table, Tag, Time, blamed, closeText, fates, silenced,
} from "../core/parts.js";
import { findingPath } from "../core/router.js";
import { useStore } from "../core/store.js";

export function Overview() {
  useTitle("");
  const jobs = useStore((now) => now.jobs);
  const open = useStore((now) => now.open);
  const health = useStore((now) => now.health);
  const link = useStore((now) => now.link);
  const error = useStore((now) => now.openError);
  const [waited, setWaited] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setWaited(true), 1500);
    return () => clearTimeout(timer);
  }, []);
  // The parts appear together, so that nothing moves below the pointer.
  if (!waited && !(jobs && open && health)) return html`<main id="main"><h1 class="verdict" tabindex="-1">Loading</h1></main>`;
  const others = open ? ordered(open).slice(1) : [];
  const known = list(jobs?.jobs);
  return html`<main id="main">
    ${error && link !== "lost" ? html`<p class="box bad" role="alert"><strong>Open findings cannot be read:</strong> ${error}</p>` : ""}
    <${Boundary} what="verdict" on=${open}><${Verdict} jobs=${jobs} open=${open} stale=${link === "lost"} /><//>
    <${Boundary} what="what is watched" on=${jobs}><${Watching} jobs=${jobs} /><//>
    ${others.length ? html`<section aria-labelledby="open-head">
      <h2 id="open-head">Other open findings</h2>
      <${CutNote} />
      <${Boundary} what="open findings" on=${open}><${Findings} findings=${others} none="" first=${4} /><//>
    </section>` : ""}
    <div class="columns">
      <section aria-labelledby="jobs-head">
        <h2 id="jobs-head">Jobs</h2>
        <${Boundary} what="jobs" on=${jobs}>${jobs ? known.length ? html`<${Jobs} jobs=${known} open=${open ?? NONE} />` : html`<${FirstSteps} />` : html`<p class="loading">Loading</p>`}<//>
      </section>
      <${Boundary} what="what ended" on=${jobs}><${Ended} jobs=${jobs} first=${open?.length ? ordered(open)[0] : null} without=${open?.length ? [] : failedJobs(jobs).map((one) => one.job)} /><//>
    </div>
    <${Boundary} what="health of frd" on=${health}><${Health} health=${health} /><//>
  </main>`;
}

const NONE = [];
const failedJobs = (jobs) => list(jobs?.jobs).map(record).filter((one) => one.state === "failed");

const STOPS = ["stall", "mismatch", "order", "rank_lost", "oom"]; // kinds that stop a job

/** Critical first, then what stops a job, then newest first as the API gives them; at the end what people have dealt with. */
const ordered = (open) => [...open].sort((a, b) => urgency(b) - urgency(a));
const urgency = (one) => one.goes_on === true || silenced(one) ? -1 : 2 * Number(one.severity === "critical") + Number(STOPS.includes(one.kind));

/** Says that the oldest open findings are not on the page. */
export function CutNote() {
  const cut = useStore((now) => now.openCut);
  const known = useStore((now) => now.open?.length ?? 0);
  return cut ? html`<p class="muted">Shown are the newest ${figure(known)} open findings of all jobs.</p>` : null;
}

function Verdict({ jobs, open, stale }) {
  const cut = useStore((now) => now.openCut);
  if (jobs === null || open === null) return html`<h1 class="verdict" tabindex="-1">${stale ? "Not known: no answer from frd" : "Loading"}</h1>`;
  const all = list(jobs.jobs).map(record);
  const stalled = all.filter((one) => one.state === "stalled").length;
  const failed = failedJobs(jobs);
  const blind = list(record(jobs.watching).blind);
  const dismissed = open.filter((one) => one.goes_on === true).length;
  const others = open.length - dismissed;
  const [first] = ordered(open);
  const counts = [
    stalled ? `${count(stalled, "job is", "jobs are")} stalled` : "",
    failed.length ? `${count(failed.length, "job has", "jobs have")} failed` : "",
    cut ? `${figure(open.length)} or more open findings` : others ? count(others, "open finding") : "",
    dismissed ? `${count(dismissed, "finding goes", "findings go")} on, closed by hand` : "",
  ].filter(Boolean).join(", ");
  if (first) {
    return html`<div class=${`verdict ${stalled || failed.length || first.severity === "critical" ? "bad" : "warn"} ${stale ? "stale" : ""}`}>
      <p class="counts">${counts}</p>
      <h1 tabindex="-1"><${FindingLink} finding=${first} /></h1>
      ${first.effect ? html`<p class="effect">${text(first.effect)}</p>` : ""}
      <p class="muted">job <${JobLink} job=${first.job} />, since <${Time} at=${first.opened_at} /> <${Said} finding=${first} /></p>
      <${DoNow} finding=${first} />
      <${Affected} finding=${first} />
    </div>`;
  }
  if (counts) {
    return html`<div class=${`verdict bad ${stale ? "stale" : ""}`}><h1 tabindex="-1">${counts}</h1>
      ${failed.slice(0, 3).map((one) => html`<p key=${one.job}><${JobLink} job=${one.job} />: <${Failed} failure=${record(one.failure)} /></p>`)}
    </div>`;
  }
  const watched = record(jobs.watching);
  if (blind.length || list(jobs.incomplete).length) {
    return html`<div class=${`verdict warn ${stale ? "stale" : ""}`}><h1 tabindex="-1">No open findings, but frd does not see everything</h1></div>`;
  }
  const runs = all.some((one) => one.ended !== true);
  return html`<div class=${`verdict ${stale ? "stale" : runs ? "good" : ""}`}>
    <h1 tabindex="-1">${runs ? "No open findings" : "No open findings, and no job runs"}</h1>
    <p>${count(watched.jobs, "job")} and ${count(watched.ranks, "rank")} watched by ${count(watched.agents, "agent")}</p>
  </div>`;
}

/** How a job failed, with the finding that says why. */
export const Failed = ({ failure }) => html`${failure.finding ? html`<a class="row" href=${findingPath(failure.finding)}>${text(failure.text)}</a>` : text(failure.text)},
  <${Time} at=${failure.at} />`;

/** What the victims of a finding are, by its kind; those of other kinds are not shown here. */
const VICTIMS = { stall: "Only wait", order: "Only wait", mismatch: "Only wait", straggler: "Only wait", rank_lost: "Also affected" };

/** The ranks that a finding affects. */
function Affected({ finding }) {
  const affected = Object.hasOwn(VICTIMS, text(finding.kind)) ? VICTIMS[finding.kind] : "";
  return affected && list(finding.victims).length ? html`<p class="affected"><span class="muted">${affected}</span> <${Ranks} ranks=${finding.victims} /></p>` : null;
}

/** Every reason why a hang could go unnoticed, always visible. */
function Watching({ jobs }) {
  if (jobs === null) return null;
  const { jobs: running, ranks, agents, last_heard_s, blind } = record(jobs.watching);
  const incomplete = list(jobs.incomplete);
  return html`
    ${list(blind).map((one, i) => html`<p key=${`b${i}`} class="box warn"><strong>Blind:</strong> ${text(one)}</p>`)}
    ${incomplete.length
      ? html`<p class="box warn"><strong>Incomplete:</strong> no answer from ${incomplete.map(text).join(", ")}; jobs and findings of these replicas may be missing here.</p>`
      : ""}
    ${list(jobs.warnings).map((one, i) => html`<p key=${`w${i}`} class="box"><strong>Warning:</strong> <${JobLink} job=${record(one).job} />: ${text(record(one).text)}</p>`)}
    <p class="muted watching">Watched: ${count(running, "job")}, ${count(ranks, "rank")}, ${count(agents, "agent")};${" "}
      ${last_heard_s === null ? "no agent has reported yet" : `last report ${age(last_heard_s)} ago`}.</p>
  `;
}

/** @param {{findings: any[], none: string, closed?: boolean, jobless?: boolean, first?: number}} props `first`: so many without a click */
export function Findings({ findings, none, closed = false, jobless = false, first = Infinity }) {
  if (!findings.length) return html`<p>${none}</p>`;
  const head = [closed ? "Opened" : "Severity", "Finding", "Job", "Kind", closed ? "Lasted" : "Open for"];
  const rows = findings.map((raw) => {
    const one = record(raw);
    const row = [
      closed ? html`<${Time} at=${one.opened_at} />` : html`<${Tag} value=${one.severity} />`,
      html`<${FindingLink} finding=${one} />${one.effect ? html`<div class="muted">${text(one.effect)}</div>` : ""}
        ${one.goes_on === true || closed ? html`<div class="muted">${closeText(one)}</div>` : ""}<${Said} finding=${one} />`,
      html`<${JobLink} job=${one.job} />`,
      text(one.kind),
      html`<${Age} at=${one.opened_at} until=${one.goes_on === true ? null : (one.closed_at ?? null)} />`,
    ];
    return jobless ? row.filter((_, i) => i !== 2) : row;
  });
  return html`<${LongTable} label="Findings" first=${first} stack=${true} wide=${[1]} head=${jobless ? head.filter((_, i) => i !== 2) : head} rows=${rows} />`;
}

function Jobs({ jobs, open }) {
  const rank = { stalled: 0, failed: 0, unwatched: 1, running: 2, lost: 3, ended: 4 };
  const blames = useMemo(() => new Map([...new Set(open.map((one) => one.job))].map((job) => [job, blamed(open.filter((one) => one.job === job))])), [open]);
  const sorted = jobs.map(record).sort((a, b) => (rank[a.state] ?? 1) - (rank[b.state] ?? 1));
  return html`<${Table} label="Jobs" extra=${[3, 4]} head=${["Job", "State", "Ranks", "Collectives", "Last report"]}
    rows=${sorted.map((one) => [
      html`<${JobLink} job=${one.job} />${one.attempt ? html` <span class="muted">attempt ${text(one.attempt)}</span>` : ""}`,
      html`<${Tag} value=${one.state} />`,
      html`<${Counts} counts=${fates(one.ranks, blames.get(one.job) ?? blamed([]))} calm=${one.ended === true && !one.failure} />${one.gap_entries ? html`, <span class="warn">${figure(one.gap_entries)} entries lost</span>` : ""}`,
      html`<${Pace} pace=${one.pace} />`,
      one.last_heard_s === null ? "none yet" : `${age(one.last_heard_s)} ago`,
    ])}
  />`;
}

const FIRST = 6; // of what ended, without a click

/** What is over by itself: failed jobs and closed findings. @param {{jobs: any, job?: string | null, first?: any, without?: any[]}} props
 * `first`: the finding that the page begins with; `without`: failed jobs that are shown elsewhere */
export function Ended({ jobs, job = null, first = null, without = [] }) {
  const [all, setAll] = useState(false);
  const ended = new Map(); // one line for what happened again and again
  for (const one of list(jobs?.ended).map(record)) {
    if ((job !== null && one.job !== job) || (one.kind === "failed" && without.includes(one.job))) continue;
    const same = JSON.stringify([one.job, one.text]);
    ended.set(same, { ...one, ...ended.get(same), times: (ended.get(same)?.times ?? 0) + 1 });
  }
  if (!ended.size) return null;
  const lines = [...ended.values()];
  return html`<section aria-labelledby="ended-head">
    <h2 id="ended-head">Ended by itself in the last 24 hours</h2>
    <ul class="ended">${(all ? lines : lines.slice(0, FIRST)).map((one, i) => html`<li key=${i}>
      ${job === null ? html`<${JobLink} job=${one.job} />: ` : ""}${one.finding ? html`<a class="row" href=${findingPath(one.finding)}>${first && first.job === one.job && first.headline === one.text ? "the same as now" : text(one.text)}</a>` : text(one.text)}
      <div class="muted small">${text(one.kind)}${one.times > 1 ? `, ${one.times} times, last` : ""} <${Time} at=${one.at} /></div></li>`)}</ul>
    ${lines.length > FIRST && !all ? html`<p><button type="button" onClick=${() => setAll(true)}>Show all ${lines.length}</button></p>` : ""}
  </section>`;
}

/** For a service to which no job has reported. */
function FirstSteps() {
  const steps = [
    ["On each node, start the agent:", `frd-agent run --service ${location.hostname.includes(":") ? `[${location.hostname}]` : location.hostname}:9373`],
    ["Start the training below the tap; the program does not change:", "frd-agent exec -- torchrun --nproc-per-node 8 train.py"],
    ["Ask what is missing, on the node:", "frd doctor"],
  ];
  return html`<p>No job has reported to this service. Three steps:</p>
    <ol class="do-now">${steps.map(([what, command]) => html`<li key=${command}>${what}<span class="command"><code>${command}</code><${Copy} value=${command} what=${command} /></span></li>`)}</ol>
    <p class="muted small">9373 is the default port for agents. All on one machine: <code>frd up</code> starts service and agent.</p>`;
}
