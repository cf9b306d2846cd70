/**
 * The map of a job with its tools, tip and legend, and the bad ranks as text.
 */
import { html, useEffect, useMemo, useRef, useState } from "../../vendor/standalone.module.js";
import { figure, text } from "../core/format.js";
import { placeOf } from "../core/parts.js";
import { BAD, heatModel, notableRanks } from "./heatmap.js";
import { HeatMap } from "./heatmap_canvas.js";
import { Tip } from "../finding/lanes_view.js";

/** @param {{data: Record<string, any>, choose: (rank: number) => void, suspects: Map<number, any>}} props `data`: an answer of view=map */
export function HeatMapView({ data, choose, suspects }) {
  const box = useRef(null);
  const [tip, setTip] = useState(null);
  const map = useRef(null);
  const [error, fail] = useState(null);
  if (error) throw error; // to the boundary around
  map.current ??= new HeatMap(setTip, (rank) => chosen.current(rank), fail);
  const chosen = useRef(choose);
  chosen.current = choose;
  const model = useMemo(() => heatModel(data), [data]);
  useEffect(() => map.current.mount(box.current), []);
  const places = new Map([...suspects].map(([rank, one]) => [rank, placeOf(one) || text(one.reason)]));
  const marked = JSON.stringify([...places]);
  useEffect(() => map.current.take(model, places), [model, marked]);
  const act = (name, ...given) => () => map.current[name](...given);
  const show = (event) => {
    event.preventDefault();
    const rank = Number(event.currentTarget.elements.rank.value);
    if (rank >= 0 && rank < model.ranks) choose(rank);
  };
  const said = notableRanks(model);
  const quiet = said.every(({ state }) => state.name === "unknown");
  return html`
    <form class="tools" onSubmit=${show}>
      <button type="button" onClick=${act("zoom", 0.5)}>Zoom in</button> <button type="button" onClick=${act("zoom", 2)}>Zoom out</button>
      ${" "}<button type="button" onClick=${() => map.current.to(0, model.ranks)}>All ranks</button>
      ${" "}<label>Rank <input name="rank" type="number" min="0" max=${Math.max(0, model.ranks - 1)} required /></label> <button type="submit">Show</button>
    </form>
    <div class="heat" ref=${box} tabindex="0" role="group" aria-label="Map of groups and ranks" aria-describedby="heat-keys heat-text">
      <canvas></canvas><${Tip} tip=${tip} />
    </div>
    <p class="legend">${model.states.map((one) => html`<span key=${one.code} class=${one.level >= BAD && one.cells ? "strong" : ""}>
      <i class=${`swatch ${one.colour}`}></i>${one.label} ${one.text !== one.name ? html`<span class="muted">(${one.text})</span>` : ""} ${figure(one.cells)}</span>`)}</p>
    <p id="heat-text">${quiet ? "No rank waits long in a collective or is missing from one, as far as is known. " : ""}${
      said.map(({ state, ranks, count }, i) => html`<span key=${state.code}>${i ? "; " : ""}<strong>${state.label}</strong>: ${count === 1 ? "rank" : `${figure(count)} ranks,`} ${ranks}</span>`)}</p>
    ${[...places].slice(0, 4).map(([rank, place]) => html`<p key=${rank}><strong class="bad">▼ suspect</strong>: rank ${rank}, ${place}</p>`)}
    <p class="muted small" id="heat-keys">Mouse wheel: zoom. Drag: move. Click: show a rank. Keys: arrows move the cursor, + − zoom, 0 all ranks, Enter shows the rank.</p>
  `;
}
