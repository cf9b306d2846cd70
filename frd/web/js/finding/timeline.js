/**
 * The picture of a finding: reads the timeline and shows lanes, curves, notes, and the same as a table.
 *
 * While the finding is open, the timeline is read again every 5 s. When it closes, it is read at
 * once and 5 s later: the service may store the last version of it after the finding.
 */
import { html, useEffect, useRef, useState } from "../../vendor/standalone.module.js";
import { get } from "../core/api.js";
import { LatenessChart, MemoryChart } from "./charts.js";
import { figure, list, number, record, segment, text } from "../core/format.js";
import { facts, laneModel } from "./lanes.js";
import { Lanes } from "./lanes_view.js";
import { Boundary, Table } from "../core/parts.js";
import { ranges, rangesText } from "../core/ranges.js";

const EVERY_MS = 5_000;
const PAGE = 256; // most lanes in an answer
const TABLE_ROWS = 400;

export function Timeline({ finding }) {
  const [ranks, setRanks] = useState("");
  const { data, error } = useTimeline(finding, ranks);
  if (!data) return html`<section aria-labelledby="picture-head"><h2 id="picture-head">Timeline</h2>
    ${error ? html`<p class="box warn">${error}</p>` : html`<p class="loading picture-place">Loading</p>`}</section>`;
  const lanes = list(data.lanes);
  const memory = list(record(data.memory).series);
  const lateness = list(record(data.lateness).ranks);
  return html`<section aria-labelledby="picture-head">
    <h2 id="picture-head">Timeline</h2>
    ${error ? html`<p class="box warn">${error}</p>` : ""}
    ${data.empty ? html`<p class="box">${text(data.empty)}</p>` : ""}
    ${memory.length ? html`<${Boundary} what="memory" on=${data}><${MemoryChart} data=${data} /><//>` : ""}
    ${lateness.length ? html`<${Boundary} what="lateness" on=${data}><${LatenessChart} data=${data} /><//>` : ""}
    ${lanes.length ? html`<${Boundary} what="lanes" on=${data}><${Lanes} data=${data} finding=${finding} /><//>` : ""}
    <${Choice} data=${data} ranks=${ranks} choose=${setRanks} />
    ${list(data.notes).map((one, i) => html`<p key=${i} class="note">${text(one)}</p>`)}
    ${lanes.length ? html`<${AsTable} data=${data} />` : ""}
  </section>`;
}

/** @param {Record<string, any>} finding @param {string} ranks "" for those that the service chooses */
function useTimeline(finding, ranks) {
  const [answer, setAnswer] = useState({ data: null, error: "" });
  const etag = useRef("");
  const open = finding.state === "open";
  const seenOpen = useRef(null); // the finding that was open on this page
  if (open) seenOpen.current = finding.id;
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let left = open ? Infinity : seenOpen.current === finding.id ? 2 : 1;
    etag.current = "";
    const read = async () => {
      left -= 1;
      if (!document.hidden || !open) {
        try {
          const query = ranks ? `?ranks=${encodeURIComponent(ranks)}` : "";
          const found = await get(`/api/v1/findings/${segment(finding.id)}/timeline${query}`, { etag: etag.current, signal: stop.signal, clock: false });
          etag.current = found.etag;
          if (found.data) setAnswer({ data: found.data, error: "" });
        } catch (error) {
          if (stop.signal.aborted) return;
          setAnswer((before) => ({ ...before, error: error.message }));
        }
      }
      if (left > 0 && !stop.signal.aborted) timer = setTimeout(read, EVERY_MS);
    };
    read();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [finding.id, open, ranks]);
  return answer;
}

/** Which ranks are shown: the chosen few, or all of them in pages. */
function Choice({ data, ranks, choose }) {
  const all = number(data.all_ranks) ?? 0;
  const shown = ranges(text(data.ranks));
  const first = shown[0]?.[0] ?? 0;
  const page = (from) => choose(`${from}-${Math.min(from + PAGE, all) - 1}`);
  const submit = (event) => {
    event.preventDefault();
    choose(rangesText(ranges(event.currentTarget.elements.ranks.value)));
  };
  if (all <= list(data.lanes).length && !ranks) return null;
  return html`<form class="tools" onSubmit=${submit}>
    <span class="muted">Shown: ranks ${rangesText(shown) || "–"} of ${figure(all)}.</span>
    ${ranks ? html` <button type="button" onClick=${() => choose("")}>Most relevant ranks</button>` : ""}
    ${!ranks || all > PAGE ? html` <button type="button" onClick=${() => page(0)}>${all > PAGE ? `First ${PAGE} ranks` : "All ranks"}</button>` : ""}
    ${ranks && first > 0 ? html` <button type="button" onClick=${() => page(Math.max(0, first - PAGE))}>Previous ranks</button>` : ""}
    ${ranks && first + PAGE < all ? html` <button type="button" onClick=${() => page(first + PAGE)}>Next ranks</button>` : ""}
    ${" "}<label>Ranks <input name="ranks" size="12" placeholder="0-15,20" pattern="[0-9,\\- ]*" key=${ranks} defaultValue=${ranks} /></label> <button type="submit">Show</button>
  </form>`;
}

/** The lanes as text, for screen readers and for copying. */
function AsTable({ data }) {
  const [open, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>The timeline as a table</summary>${open ? html`<${Rows} data=${data} />` : ""}
  </details>`;
}

function Rows({ data }) {
  const model = laneModel(data);
  const rows = [];
  for (const lane of model.lanes) {
    // What is missing or open comes first: that is what a finding is about.
    const items = [...lane.items].sort((a, b) => Number(b.open) - Number(a.open) || b.start - a.start);
    for (const item of items) {
      const [what, ...rest] = facts(model, lane, item);
      rows.push([text(lane.rank), lane.role, text(lane.node), what.replace(/^rank \S+:? /, ""), rest.join("; ")]);
    }
  }
  return html`<${Table} label="Timeline" head=${["Rank", "Role", "Node", "Op", "Times (UTC)"]} rows=${rows.slice(0, TABLE_ROWS)} />
    ${rows.length > TABLE_ROWS ? html`<p class="muted">The first ${TABLE_ROWS} of ${figure(rows.length)} rows.</p>` : ""}`;
}
