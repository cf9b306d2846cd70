/**
 * The first page: is a job stuck, which rank is the first cause, and does frd see everything?
 *
 * The verdict uses states, counts and sentences of the API. It never names a cause by itself.
 */
import { html, useEffect, useState } from "../../vendor/standalone.module.js";
import { Health } from "./health.js";
import { age, count, figure, list, record, text } from "../core/format.js";
import { useTitle } from "../core/frame.js";
import { Age, Boundary, Counts, FindingLink, JobLink, Pace, Ranks, SuspectLine, Table, Tag, closeText, folded } from "../core/parts.js";
import { useStore } from "../core/store.js";

export function Overview() {
  useTitle("");
  const jobs = useStore((now) => now.jobs);
  const open = useStore((now) => now.open);
  const cut = useStore((now) => now.openCut);
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
  return html`<main id="main">
    ${error && link !== "lost" ? html`<p class="box bad" role="alert"><strong>Open findings cannot be read:</strong> ${error}</p>` : ""}
    <${Boundary} what="verdict" on=${open}><${Verdict} jobs=${jobs} open=${open} cut=${cut} stale=${link === "lost"} /><//>
    <${Boundary} what="what is watched" on=${jobs}><${Watching} jobs=${jobs} /><//>
    <section aria-labelledby="open-head">
      <h2 id="open-head">Open findings</h2>
      <${CutNote} />
      <${Boundary} what="open findings" on=${open}>
        ${open === null ? html`<p class="loading">Loading</p>` : html`<${Findings} findings=${ordered(open)} none="No open findings." />`}
      <//>
    </section>
    <section aria-labelledby="jobs-head">
      <h2 id="jobs-head">Jobs</h2>
      <${Boundary} what="jobs" on=${jobs}>${jobs ? html`<${Jobs} jobs=${list(jobs.jobs)} />` : html`<p class="loading">Loading</p>`}<//>
    </section>
    <${Boundary} what="health of frd" on=${health}><${Health} health=${health} /><//>
  </main>`;
}

const STOPS = ["stall", "mismatch", "order", "rank_lost", "oom"]; // kinds that stop a job

/** Critical first, then what stops a job, then newest first as the API gives them. */
const ordered = (open) => [...open].sort((a, b) => urgency(b) - urgency(a));
const urgency = (one) => one.goes_on === true ? -1 : 2 * Number(one.severity === "critical") + Number(STOPS.includes(one.kind));

/** Says that the oldest open findings are not on the page. */
export function CutNote() {
  const cut = useStore((now) => now.openCut);
  const known = useStore((now) => now.open?.length ?? 0);
  return cut ? html`<p class="muted">Shown are the newest ${figure(known)} open findings of all jobs.</p>` : null;
}

function Verdict({ jobs, open, cut, stale }) {
  if (jobs === null || open === null) return html`<h1 class="verdict" tabindex="-1">${stale ? "Not known: no answer from frd" : "Loading"}</h1>`;
  const all = list(jobs.jobs).map(record);
  const stalled = all.filter((one) => one.state === "stalled").length;
  const failed = all.filter((one) => one.state === "failed").length;
  const blind = list(record(jobs.watching).blind);
  const dismissed = open.filter((one) => one.goes_on === true).length;
  const others = open.length - dismissed;
  const [first] = ordered(open);
  const counts = [
    stalled ? `${count(stalled, "job is", "jobs are")} stalled` : "",
    failed ? `${count(failed, "job has", "jobs have")} failed` : "",
    cut ? `${figure(open.length)} or more open findings` : others ? count(others, "open finding") : "",
    dismissed ? `${count(dismissed, "finding goes", "findings go")} on, closed by hand` : "",
  ].filter(Boolean);
  if (counts.length) {
    return html`<div class=${`verdict ${stalled || failed || first?.severity === "critical" ? "bad" : "warn"} ${stale ? "stale" : ""}`}>
      <h1 tabindex="-1">${counts.join(", ")}</h1>
      ${first
        ? html`<p class="verdict-first"><strong>${text(first.job)}</strong>: <${FindingLink} finding=${first} />
            <span class="muted"> open for <${Age} at=${first.opened_at} /></span></p>
            <${Blame} finding=${first} />`
        : ""}
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

/** What the victims of a finding are, by its kind; those of other kinds are not shown here. */
const VICTIMS = { stall: "Only wait", order: "Only wait", mismatch: "Only wait", straggler: "Only wait", rank_lost: "Also affected" };

/** The first causes of a finding and the ranks that it affects, each in one line. */
function Blame({ finding }) {
  const suspects = folded(finding.suspects);
  const affected = Object.hasOwn(VICTIMS, text(finding.kind)) ? VICTIMS[finding.kind] : "";
  const victims = affected ? list(finding.victims) : [];
  return html`<div class="blame">
    ${suspects.length
      ? html`<span class="muted">First cause</span><div>${suspects.slice(0, 3).map((alike, i) => html`<${SuspectLine} key=${i} alike=${alike} said=${text(finding.summary)} />`)}
          ${suspects.length > 3 ? html`<div>and ${count(suspects.slice(3).flat().length, "more suspect")}</div>` : ""}</div>`
      : ""}
    ${victims.length ? html`<span class="muted">${affected}</span><div><${Ranks} ranks=${victims} /></div>` : ""}
  </div>`;
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
    <p class="muted watching">Watched: ${count(running, "job")}, ${count(ranks, "rank")}, ${count(agents, "agent")};
      last report ${last_heard_s === null || last_heard_s === undefined ? "not yet" : `${age(last_heard_s)} ago`}.</p>
  `;
}

/** @param {{findings: any[], none: string, closed?: boolean, jobless?: boolean}} props */
export function Findings({ findings, none, closed = false, jobless = false }) {
  if (!findings.length) return html`<p>${none}</p>`;
  const head = [closed ? "Opened" : "Severity", "Kind", "Job", "Finding", closed ? "Lasted" : "Open for", "First cause"];
  const rows = findings.map((raw) => {
    const one = record(raw);
    const suspects = folded(one.suspects);
    const row = [
      closed ? html`<${ShortTime} at=${one.opened_at} />` : html`<${Tag} value=${one.severity} />`,
      text(one.kind),
      html`<${JobLink} job=${one.job} />`,
      html`<${FindingLink} finding=${one} />${one.goes_on === true ? html`<div class="muted">${closeText(one)}</div>` : ""}`,
      html`<${Age} at=${one.opened_at} until=${one.goes_on === true ? null : (one.closed_at ?? null)} />`,
      suspects.length
        ? html`${suspects.slice(0, 3).map((alike, i) => html`<${SuspectLine} key=${i} alike=${alike} said=${text(one.summary)} />`)}
            ${suspects.length > 3 ? html`<div class="muted">and ${count(suspects.slice(3).flat().length, "more suspect")}</div>` : ""}`
        : html`<span class="muted">no suspect${one.reason ? `: ${text(one.reason)}` : ""}</span>`,
    ];
    return jobless ? row.filter((_, i) => i !== 2) : row;
  });
  return html`<${Table} label="Findings" stack=${true} wide=${jobless ? [2, 4] : [3, 5]} head=${jobless ? head.filter((_, i) => i !== 2) : head} rows=${rows} />`;
}

const ShortTime = ({ at }) =>
  html`<time datetime=${text(at)} class="nowrap">${text(at).slice(0, 19).replace("T", " ")}</time>`;

function Jobs({ jobs }) {
  if (!jobs.length) return html`<p>No job has reported to this service.</p>`;
  const rank = { stalled: 0, failed: 0, unwatched: 1, running: 2, lost: 3, ended: 4 };
  const sorted = jobs.map(record).sort((a, b) => (rank[a.state] ?? 1) - (rank[b.state] ?? 1));
  return html`<${Table} label="Jobs" stack=${true} numbers=${[2]}
    head=${["Job", "State", "Ranks", "Collectives", "Ranks by state", "Open findings", "Last report"]}
    rows=${sorted.map((one) => [
      html`<${JobLink} job=${one.job} />${one.attempt ? html` <span class="muted">attempt ${text(one.attempt)}</span>` : ""}`,
      html`<${Tag} value=${one.state} />${one.failure ? html` ${text(one.failure.text)}` : ""}`,
      figure(one.world_size),
      html`<${Pace} pace=${one.pace} />`,
      html`<${Counts} counts=${one.ranks} />${one.gap_entries ? html`, <span class="warn">${figure(one.gap_entries)} entries lost</span>` : ""}`,
      one.open_findings ? html`<strong class="bad">${figure(one.open_findings)}</strong>` : "0",
      one.last_heard_s === null || one.last_heard_s === undefined ? "none yet" : `${age(one.last_heard_s)} ago`,
    ])}
  />`;
}
