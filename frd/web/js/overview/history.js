/**
 * Closed findings, newest first, with filters in the address so that a link shows the same list.
 */
import { html, useEffect, useState } from "../../vendor/standalone.module.js";
import { get } from "../core/api.js";
import { list, record, text } from "../core/format.js";
import { useTitle } from "../core/frame.js";
import { Findings } from "./overview.js";
import { Boundary } from "../core/parts.js";
import { go } from "../core/router.js";

const PAGE = 50;
const NAMES = ["job", "kind", "since", "until"];
const KINDS = ["stall", "mismatch", "order", "straggler", "memory_spike", "oom", "rank_lost", "telemetry_gap", "clock_unsynchronized", "standstill"];

/** Only the filters that have a value. */
function filters(query) {
  const found = new URLSearchParams();
  for (const name of NAMES) if (query.get(name)) found.set(name, query.get(name));
  return found;
}

export function History({ query }) {
  useTitle("history");
  const [answer, setAnswer] = useState({ key: null, findings: [], error: "" });
  const chosen = filters(query);
  const key = chosen.toString();
  useEffect(() => {
    const stop = new AbortController();
    const asked = new URLSearchParams(chosen);
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
  const last = answer.findings[answer.findings.length - 1];
  const older = new URLSearchParams(chosen);
  if (last) older.set("until", text(last.opened_at));
  const newest = new URLSearchParams(chosen);
  newest.delete("until");
  const shown = answer.key === key;
  return html`<main id="main">
    <h1 tabindex="-1">History</h1>
    <form class="filters" action="/history" method="get" onSubmit=${submit} key=${key}>
      <label>Job <input name="job" defaultValue=${query.get("job") ?? ""} /></label>
      <label>Kind <select name="kind">
        <option value="">any</option>
        ${[...new Set([...KINDS, query.get("kind") ?? ""])].filter(Boolean).map((one) => html`<option key=${one} value=${one} selected=${one === query.get("kind")}>${one}</option>`)}
      </select></label>
      <label>Since <input name="since" placeholder="2026-11-20T10:00Z" defaultValue=${query.get("since") ?? ""} /></label>
      <label>Opened before <input name="until" placeholder="2026-11-21T10:00Z" defaultValue=${query.get("until") ?? ""} /></label>
      <button type="submit">Show</button> <a href="/history">Clear</a>
    </form>
    ${answer.error && shown ? html`<p class="box bad" role="alert">${answer.error}</p>` : ""}
    <${Boundary} what="history" on=${answer}>
      ${shown ? (answer.error ? "" : html`<${Findings} findings=${answer.findings} none="No closed findings match." closed=${true} />`) : html`<p class="loading">Loading</p>`}
    <//>
    <p class="paging">
      ${chosen.has("until") ? html`<a href=${`/history?${newest}`}>Newest</a>` : ""}
      ${shown && answer.findings.length >= PAGE ? html` <a href=${`/history?${older}`}>Older</a>` : ""}
    </p>
  </main>`;
}
