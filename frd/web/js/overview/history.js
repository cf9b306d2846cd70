/**
 * Closed findings, newest first, with filters in the address so that a link shows the same list.
 */
import { html, useEffect, useState } from "../../vendor/standalone.module.js";
import { get } from "../core/api.js";
import { now } from "../core/clock.js";
import { list, record, text } from "../core/format.js";
import { useTitle } from "../core/frame.js";
import { Findings } from "./overview.js";
import { Boundary } from "../core/parts.js";
import { go } from "../core/router.js";

const PAGE = 100;
const ASKED = ["job", "kind", "since", "until"]; // of the API
const NAMES = [...ASKED, "severity", "text"];
const RECENT_MS = 24 * 3600_000;
const KINDS = ["stall", "mismatch", "order", "straggler", "memory_spike", "oom", "rank_lost", "telemetry_gap", "clock_unsynchronized", "standstill"];

/** Only the filters that have a value. */
function filters(query, names = NAMES) {
  const found = new URLSearchParams();
  for (const name of names) if (query.get(name)) found.set(name, query.get(name));
  return found;
}

const dayAgo = () => new Date((now() || Date.now()) - RECENT_MS).toISOString();

/** Whether a finding has the severity, and the text anywhere. */
const matches = (one, query) =>
  (!query.get("severity") || one.severity === query.get("severity")) &&
  JSON.stringify(one).toLowerCase().includes((query.get("text") ?? "").toLowerCase());

export function History({ query }) {
  useTitle("history");
  const [answer, setAnswer] = useState({ key: null, findings: [], error: "" });
  const chosen = filters(query);
  const asks = filters(query, ASKED);
  const key = asks.toString();
  const recent = !asks.has("since") && !asks.has("until");
  useEffect(() => {
    const stop = new AbortController();
    const asked = new URLSearchParams(asks);
    if (recent) asked.set("since", dayAgo());
    asked.set("state", "closed");
    asked.set("limit", String(PAGE));
    get(`/api/v1/findings?${asked}`, { signal: stop.signal }).then(
      ({ data }) => setAnswer({ key, findings: list(data.findings).map(record), error: "" }),
      (error) => stop.signal.aborted || setAnswer({ key, findings: [], error: error.message }),
    );
    return () => stop.abort();
  }, [key]);
  const submit = (event) => {
    event.preventDefault();
    const form = new URLSearchParams(new FormData(event.currentTarget));
    const next = filters(form).toString();
    go(`/history${next ? `?${next}` : ""}`);
  };
  const shown = answer.key === key;
  const found = shown ? answer.findings.filter((one) => matches(one, query)) : [];
  const isFull = answer.findings.length >= PAGE;
  const last = answer.findings[answer.findings.length - 1];
  const older = new URLSearchParams(chosen);
  older.set("until", last ? text(last.opened_at) : recent ? dayAgo() : text(asks.get("until")));
  const newest = new URLSearchParams(chosen);
  newest.delete("until");
  const none = answer.findings.length ? `None of the ${answer.findings.length} findings that were read matches.` : recent ? "No finding was closed in the last 24 hours." : "No closed findings match.";
  return html`<main id="main">
    <h1 tabindex="-1">History</h1>
    <form class="filters" action="/history" method="get" onSubmit=${submit} key=${chosen.toString()}>
      <label>Text <input name="text" type="search" placeholder="node7, shard-17" defaultValue=${query.get("text") ?? ""} /></label>
      <label>Severity <select name="severity">${["", "critical", "warning"].map((one) => html`<option key=${one} value=${one} selected=${one === (query.get("severity") ?? "")}>${one || "any"}</option>`)}</select></label>
      <label>Job <input name="job" defaultValue=${query.get("job") ?? ""} /></label>
      <label>Kind <select name="kind">
        <option value="">any</option>
        ${[...new Set([...KINDS, query.get("kind") ?? ""])].filter(Boolean).map((one) => html`<option key=${one} value=${one} selected=${one === query.get("kind")}>${one}</option>`)}
      </select></label>
      <label>Since (UTC) <input name="since" placeholder="2026-11-20T10:00Z" defaultValue=${query.get("since") ?? ""} /></label>
      <label>Opened before (UTC) <input name="until" placeholder="2026-11-21T10:00Z" defaultValue=${query.get("until") ?? ""} /></label>
      <button type="submit">Show</button> <a href="/history">Clear</a>
    </form>
    ${recent ? html`<p class="muted">Findings of the last 24 hours.</p>` : ""}
    ${answer.error && shown ? html`<p class="box bad" role="alert">${answer.error}</p>` : ""}
    <${Boundary} what="history" on=${answer}>
      ${shown ? (answer.error ? "" : html`<${Findings} findings=${found} none=${none} closed=${true} />`) : html`<p class="loading">Loading</p>`}
    <//>
    <p class="paging">
      ${chosen.has("until") ? html`<a href=${`/history?${newest}`}>Newest</a>` : ""}
      ${shown && !answer.error && (recent || isFull) ? html` <a href=${`/history?${older}`}>Older</a>` : ""}
    </p>
  </main>`;
}
