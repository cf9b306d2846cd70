/**
 * What people say of a finding: acknowledged, assigned, notes, silenced; and the forms to say it.
 */
import { html, useState } from "../../vendor/standalone.module.js";
import { send } from "../core/api.js";
import { now } from "../core/clock.js";
import { lines, list, record, segment, text } from "../core/format.js";
import { useMay } from "../core/frame.js";
import { takeFinding } from "../core/live.js";
import { Said, Time, silenced } from "../core/parts.js";
import { useStore } from "../core/store.js";

const HOUR_MS = 3600_000;
let name = ""; // of the person at this page, where no token has one

/** By action: the label of its text field, and its key in the request. */
const FIELDS = { assign: ["Assign to", "to"], note: ["Note", "text"], silence: ["Why", "because"], close: ["Why", "because"] };

export function People({ finding }) {
  const may = useMay();
  const notes = list(finding.notes).map(record);
  return html`<div class="people">
    <${Said} finding=${finding} />
    ${notes.map((one, i) => html`<div key=${i} class="person-note"><strong>${text(one.by)}</strong> <span class="muted small"><${Time} at=${one.written_at} /></span><div>${lines(one.text)}</div></div>`)}
    ${may ? html`<${Forms} finding=${finding} />` : ""}
  </div>`;
}

function Forms({ finding }) {
  const [form, setForm] = useState("");
  const [error, setError] = useState("");
  const anonymous = useStore((at) => at.session?.required !== true);
  const isOpen = finding.state === "open";
  const act = async (action, body) => {
    setError("");
    try {
      takeFinding(await send("POST", `/api/v1/findings/${segment(finding.id)}/${action}`, { ...body, ...(anonymous && name ? { by: name } : {}) }));
      setForm("");
    } catch (failure) {
      setError(failure.message);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    const { elements } = event.currentTarget;
    const body = { [FIELDS[form][1]]: elements.said.value };
    if (form === "silence") {
      const hours = Number(event.submitter?.value);
      const until = hours ? now() + hours * HOUR_MS : Date.parse(elements.until.value);
      if (Number.isNaN(until)) return elements.until.focus();
      body.until = new Date(until).toISOString();
    }
    return act(form, body);
  };
  const open = (which, label) => html`<button type="button" aria-expanded=${String(form === which)} onClick=${() => setForm(form === which ? "" : which)}>${label}</button>`;
  return html`<div class="tools">
      ${isOpen ? html`<button type="button" onClick=${() => act("ack", finding.acknowledged_by ? { undo: true } : {})}>${finding.acknowledged_by ? "Take acknowledgement back" : "Acknowledge"}</button>
        ${open("assign", "Assign")}` : ""}
      ${open("note", "Note")}
      ${isOpen ? html`${silenced(finding) ? html`<button type="button" onClick=${() => act("silence", { until: null, because: "ended by hand" })}>End the silence</button>` : open("silence", "Silence")}
        ${open("close", "Close")}` : ""}
      ${anonymous ? html`<label class="muted small">as <input size="12" placeholder="your name" defaultValue=${name} onInput=${(event) => (name = event.currentTarget.value.trim())} /></label>` : ""}
    </div>
    ${form ? html`<form class="tools say" key=${form} onSubmit=${submit}>
      <label>${FIELDS[form][0]} <input name="said" required=${form === "note" || form === "close"} maxlength="1000" ref=${(input) => input?.focus()} /></label>
      ${form === "silence"
        ? html`<button value="1">1 h</button> <button value="4">4 h</button> <label>until (local time) <input name="until" type="datetime-local" /></label> <button>Until</button>`
        : html`<button>${form === "close" ? "Close the finding" : form === "note" ? "Add" : "Assign"}</button>`}
    </form>` : ""}
    ${error ? html`<p class="box bad" role="alert">${error}</p>` : ""}`;
}
