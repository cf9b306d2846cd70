/**
 * The page of one finding: what is stuck, the first cause, what it does, the picture, the ranks that wait.
 *
 * It follows the finding to its end. Kinds, reasons and states that this file does not know are
 * shown as the API gives them, and every key may be missing.
 */
import { html, useEffect, useRef, useState } from "../../vendor/standalone.module.js";
import { download, get, textOf } from "../core/api.js";
import { duration, figure, list, lines, number, record, segment, text } from "../core/format.js";
import { useFetched } from "../core/fetched.js";
import { useMay, useTitle } from "../core/frame.js";
import { Boundary, Copy, DoNow, Facts, JobLink, Ranks, Tag, Time, closeText, headline } from "../core/parts.js";
import { jobApi } from "../core/router.js";
import { state, useStore } from "../core/store.js";
import { Waits } from "../job/waits.js";
import { People } from "./people.js";
import { Suspects } from "./suspects.js";
import { Timeline } from "./timeline.js";

/** The newest version of a finding, and why there is none. @param {string} id */
function useFinding(id) {
  const changed = useStore((now) => now.changed);
  const open = useStore((now) => now.open);
  const link = useStore((now) => now.link);
  const [read, setRead] = useState(null);
  const [error, setError] = useState("");
  const kept = useRef({}); // what only the answer about one finding has
  const off = link === "polling" || link === "lost";
  const listed = open?.find((one) => one.id === id) ?? null;
  // Read again when the connection changes, and when the finding leaves the list of open ones.
  useEffect(() => {
    const stop = new AbortController();
    get(`/api/v1/findings/${segment(id)}`, { signal: stop.signal, clock: false }).then(
      ({ data }) => {
        kept.current = { before: data.before, silence_url: data.silence_url };
        setRead(data);
        setError("");
      },
      (failure) => {
        if (!stop.signal.aborted && (failure.status >= 400 || state.link !== "lost")) setError(failure.message);
      },
    );
    return () => stop.abort();
  }, [id, off, listed === null]);
  useEffect(() => {
    if (changed?.id === id) setRead(changed);
  }, [changed, id]);
  // While polling, the list of open findings is newer than what was read once.
  const finding = link === "polling" && listed && read?.state !== "closed" ? listed : (read ?? listed);
  return { finding: finding && { ...kept.current, ...finding }, error };
}

export function Finding({ name }) {
  const { finding, error } = useFinding(name);
  useTitle(finding ? [text(finding.kind), text(finding.job)].filter(Boolean).join(": ") : "finding");
  if (!finding) {
    return html`<main id="main"><h1 tabindex="-1">Finding ${text(name)}</h1>
      ${error ? html`<p class="box bad" role="alert">${error}</p><p><a href="/">Overview</a> <a href="/history">History</a></p>` : html`<p class="loading">Loading</p>`}
    </main>`;
  }
  const suspects = list(finding.suspects);
  return html`<main id="main">
    <h1 class="summary" tabindex="-1">${headline(finding)}</h1>
    ${finding.effect ? html`<p class="effect">${text(finding.effect)}</p>` : ""}
    ${error ? html`<p class="box warn" role="alert">${error}</p>` : ""}
    <${Boundary} what="state" on=${finding}><${Head} finding=${finding} /><//>
    <section aria-labelledby="cause-head">
      <h2 id="cause-head">${suspects.length > 1 ? `First causes (${suspects.length})` : "First cause"}</h2>
      <${Boundary} what="suspects" on=${finding}><${Suspects} finding=${finding} /><//>
    </section>
    ${lasts(finding) ? html`<${Boundary} what="wait-for graph" on=${finding}><${JobWaits} finding=${finding} /><//>` : ""}
    <${Boundary} what="picture" on=${finding}><${Timeline} finding=${finding} /><//>
    <${Boundary} what="details" on=${finding}><${Details} finding=${finding} /><//>
  </main>`;
}

const lasts = (finding) => finding.state === "open" || finding.goes_on === true;

/** The wait-for graph of the finding's job, as of the newest version of the finding. */
function JobWaits({ finding }) {
  const { data } = useFetched(jobApi(finding.job, `view=summary&attempt=${encodeURIComponent(text(finding.attempt ?? 0))}`), finding);
  if (!list(data?.waits).length) return null;
  return html`<section aria-labelledby="graph-head"><h2 id="graph-head">Which rank waits for which</h2><${Waits} job=${data} /></section>`;
}

/** `This happened 4 times before`, with a link to the earlier ones. */
function Before({ finding }) {
  const { times, node, node_times, last_at } = record(finding.before);
  if (!number(times)) return null;
  const again = (n) => `${figure(n)} ${n === 1 ? "time" : "times"}`;
  const query = new URLSearchParams({ job: text(finding.job), kind: text(finding.kind), until: text(finding.opened_at) });
  return html`<p class="before">This happened <a href=${`/history?${query}`}>${again(times)} to this job before</a>${node && node_times ? `, ${again(node_times)} on ${text(node)}` : ""}; last <${Time} at=${last_at} />.</p>`;
}

function Head({ finding }) {
  const ended = !lasts(finding);
  return html`<div class="head">
    <p class="head-line">
      <${Tag} value=${finding.state} tone=${ended ? "" : "bad"} /> <${Tag} value=${finding.severity} />
      <${Tag} value=${finding.kind} tone="" />
      <span>job <${JobLink} job=${finding.job} />${finding.attempt ? ` attempt ${text(finding.attempt)}` : ""}</span>
      <span>${ended ? "" : "since "}<${Time} at=${finding.opened_at} />${ended && finding.closed_at ? html` to <${Time} at=${finding.closed_at} />` : ""}</span>
    </p>
    <${DoNow} finding=${finding} />
    <${Before} finding=${finding} />
    <${People} finding=${finding} />
    ${finding.close_reason ? html`<p class="box"><strong>Closed:</strong> ${closeText(finding)}</p>` : ""}
    ${finding.ended_by ? html`<p class="box"><strong>The job:</strong> ${text(finding.ended_by)}</p>` : ""}
    ${finding.disagreement ? html`<p class="box bad"><strong>Disagreement:</strong> ${text(finding.disagreement)}</p>` : ""}
    <${Actions} finding=${finding} />
  </div>`;
}

function Actions({ finding }) {
  const [error, setError] = useState("");
  const may = useMay();
  const id = segment(finding.id);
  const fetched = (path) => async (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    setError("");
    try {
      await download(path);
    } catch (failure) {
      setError(failure.message);
    }
  };
  const dump = finding.dump && may ? `/api/v1/dumps/${segment(finding.dump)}` : "";
  const perfetto = `/api/v1/findings/${id}/timeline?format=perfetto`;
  return html`<p class="actions">
      ${finding.runbook ? html`<a href=${`/runbooks/${segment(finding.runbook)}.md`}>Runbook</a>` : html`<a href="/runbooks/">Runbooks</a>`}
      ${dump ? html`<a href=${dump} onClick=${fetched(dump)}>Download the dump</a>` : ""}
      <a href=${perfetto} onClick=${fetched(perfetto)} title="A file for ui.perfetto.dev">Perfetto</a>
      <a href=${`/api/v1/findings/${id}`}>JSON</a>
      ${/^https?:/.test(text(finding.silence_url)) && lasts(finding) ? html`<a href=${finding.silence_url} rel="noreferrer">Silence its alerts</a>` : ""}
      <${Copy} value=${() => location.href} label="Copy link" />
      <${Copy} value=${() => textOf(`/api/v1/findings/${id}?format=markdown`)} label="Copy as Markdown" />
    </p>
    ${error ? html`<p class="box bad" role="alert">${error}</p>` : ""}`;
}

function Details({ finding }) {
  const collective = record(finding.collective);
  const has = Object.keys(collective).length > 0;
  const held = list(finding.groups_held_up);
  const victims = list(finding.victims);
  const unknown = list(finding.unknown_ranks);
  const witness = record(finding.witness);
  const opinions = list(finding.second_opinion);
  const seq = number(collective.seq);
  return html`<section aria-labelledby="waits-head">
    <h2 id="waits-head">Ranks that wait, and facts</h2>
    <${Facts} rows=${[
      ["Collective", has ? `${text(collective.op)}${seq !== null && seq >= 0 ? ` #${seq}` : ""}${collective.group ? ` on ${text(collective.group)}` : ""}` : ""],
      ["Group size", number(collective.group_size) ? figure(collective.group_size) : ""],
      ["Has waited", number(collective.waiting_s) ? duration(collective.waiting_s) : ""],
      ["Not joined", list(collective.missing_ranks).length ? html`<${Ranks} ranks=${collective.missing_ranks} />` : ""],
      ["Joined, and waits", list(collective.waiting_ranks).length && String(collective.waiting_ranks) !== String(victims) ? html`<${Ranks} ranks=${collective.waiting_ranks} />` : ""],
      ["Victims", victims.length ? html`<${Ranks} ranks=${victims} />` : ""],
      ["Unknown ranks", unknown.length ? html`<${Ranks} ranks=${unknown} />` : ""],
      ["Second opinion", opinions.length ? opinions.map((line) => html`<div>${text(line)}</div>`) : ""],
      ["Time lost", number(finding.lost_s) ? duration(finding.lost_s) : ""],
      ["Groups held up", held.length ? html`<${Groups} names=${held} />` : ""],
      ["Critical since", finding.critical_at ? html`<${Time} at=${finding.critical_at} />` : ""],
      ["Dump", text(finding.dump)],
      ["Id", html`<code>${text(finding.id)}</code>`],
    ]} />
    ${list(witness.stack).length
      ? html`<h3>Rank ${text(witness.rank)} entered the collective from</h3><pre tabindex="0">${lines(witness.stack)}</pre>`
      : ""}
  </section>`;
}

function Groups({ names }) {
  const all = names.map(text);
  if (all.length <= 6) return all.join(", ");
  return html`<details><summary>${all.slice(0, 4).join(", ")} and ${all.length - 4} more</summary>${all.join(", ")}</details>`;
}

