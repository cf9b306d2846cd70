/**
 * Shortcuts: j and k go through the findings of a page, / to its filter, ? lists them.
 */
import { html, useEffect, useRef } from "../../vendor/standalone.module.js";
import { go } from "./router.js";

const KEYS = [
  ["j, k", "next and previous finding of the page; Enter opens it"],
  ["/", "filter the history"],
  ["?", "this list"],
  ["Esc", "close a list or panel"],
];

function move(by) {
  const rows = [...document.querySelectorAll("main a.row")];
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}

function filter() {
  if (location.pathname !== "/history") go("/history");
  requestAnimationFrame(() => document.querySelector(".filters input")?.focus());
}

export function Keys() {
  const dialog = useRef(null);
  useEffect(() => {
    const acts = { j: () => move(1), k: () => move(-1), "/": filter, "?": () => dialog.current.showModal() };
    const press = (event) => {
      const typing = event.target instanceof Element && event.target.closest("input, select, textarea, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(acts, event.key)) return;
      event.preventDefault();
      acts[event.key]();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  return html`<button type="button" class="link keys" aria-label="Keyboard shortcuts" onClick=${() => dialog.current.showModal()}>?</button>
    <dialog ref=${dialog} aria-labelledby="keys-head">
      <h2 id="keys-head">Keyboard shortcuts</h2>
      <dl class="keys-list">${KEYS.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
      <form method="dialog"><button>Close</button></form>
    </dialog>`;
}
