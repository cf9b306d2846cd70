/**
 * The picture of a finding: lanes on one time axis, with zoom, pan, keyboard and a tip.
 *
 * The canvas has the size of what is visible; it sticks in a box that scrolls vertically, so
 * the time axis stays in view. Zoom is kept when a newer answer arrives.
 */
import { html, useEffect, useRef, useState } from "../../vendor/standalone.module.js";
import { list, text } from "../core/format.js";
import { facts, itemAt, laneModel, letter } from "./lanes.js";
import { AXIS, drawLanes, scale } from "./lanes_draw.js";
import { fit, onTheme, theme } from "../core/theme.js";

const MOST_HEIGHT = 460;
const SHORTEST_S = 2e-5;

/** Everything about the picture that is not Preact's. */
class Picture {
  /** @param {(tip: object | null) => void} show the lines of the tip and its place @param {(error: Error) => void} fail */
  constructor(show, fail) {
    Object.assign(this, { show, fail });
    this.model = laneModel({});
    this.view = { t0: 0, t1: 1, scroll: 0, width: 0, height: 0, gutter: 150 };
    this.shows = incident; // what a newer answer shows; null after a zoom: the same time
    this.chosen = null;
    this.frame = 0;
    this.linked = /^([\d.]+)-([\d.]+)$/.exec(new URLSearchParams(location.search).get("zoom") ?? ""); // seconds since the epoch
  }

  /** The zoom is in the address, so that a link shows the same. */
  remember() {
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      const url = new URL(location.href);
      const at = (s) => (this.model.fromUs / 1e6 + s).toFixed(6);
      if (this.shows === incident) url.searchParams.delete("zoom");
      else url.searchParams.set("zoom", `${at(this.view.t0)}-${at(this.view.t1)}`);
      history.replaceState(history.state, "", url);
    }, 300);
  }

  mount(box) {
    this.box = box;
    this.scroller = box.querySelector(".lanes-scroll");
    this.canvas = box.querySelector("canvas");
    this.space = box.querySelector(".lanes-space");
    const resize = new ResizeObserver(() => this.layout());
    resize.observe(box);
    const untheme = onTheme(() => this.draw());
    const on = (name, act, options) => this.scroller.addEventListener(name, act, options);
    on("scroll", () => this.draw());
    on("wheel", (event) => this.wheel(event), { passive: false });
    on("pointerdown", (event) => this.down(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", () => (this.drag = null));
    on("pointercancel", () => (this.drag = null));
    on("pointerleave", () => this.choose(null));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("blur", () => this.choose(null));
    const page = () => (this.pageScrolled = performance.now());
    addEventListener("scroll", page, { passive: true });
    return () => {
      resize.disconnect();
      untheme();
      removeEventListener("scroll", page);
      cancelAnimationFrame(this.frame);
      clearTimeout(this.later);
    };
  }

  take(model) {
    const shift = this.model.items ? (this.model.fromUs - model.fromUs) / 1e6 : 0;
    if (this.shows || !Number.isFinite(shift)) Object.assign(this.view, (this.shows ?? incident)(model));
    else {
      this.view.t0 += shift;
      this.view.t1 += shift;
    }
    this.model = model;
    if (this.linked && model.items) {
      const [t0, t1] = [Number(this.linked[1]) - model.fromUs / 1e6, Number(this.linked[2]) - model.fromUs / 1e6];
      this.linked = null;
      if (t1 - t0 >= SHORTEST_S) this.to(t0, Math.min(t1 - t0, wholeSpan(model).t1 - wholeSpan(model).t0));
    }
    this.chosen = this.chosen && matching(model, this.chosen);
    this.layout();
  }

  layout() {
    if (!this.box || !this.box.clientWidth) return;
    const width = this.scroller.clientWidth;
    const height = Math.min(MOST_HEIGHT, this.model.height + AXIS);
    Object.assign(this.view, { width, height, gutter: width < 560 ? 104 : 210 });
    this.scroller.style.height = `${height}px`;
    this.space.style.height = `${Math.max(0, this.model.height + AXIS - height)}px`;
    this.draw();
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      this.view.scroll = this.scroller.scrollTop;
      try {
        drawLanes(fit(this.canvas, this.view.width, this.view.height), this.model, this.view, theme(), this.chosen);
      } catch (error) {
        this.fail(error);
      }
    });
  }

  seconds(x) {
    const { t0, t1, width, gutter } = this.view;
    return t0 + ((x - gutter) / (width - gutter)) * (t1 - t0);
  }

  zoom(factor, at = (this.view.t0 + this.view.t1) / 2) {
    const { t0, t1 } = this.view;
    const full = wholeSpan(this.model);
    const span = Math.min(Math.max((t1 - t0) * factor, SHORTEST_S), full.t1 - full.t0);
    this.to(at - ((at - t0) / (t1 - t0)) * span, span);
  }

  /** @param {(model: import("./lanes.js").Model) => {t0: number, t1: number}} span */
  go(span) {
    this.shows = span;
    Object.assign(this.view, span(this.model));
    this.remember();
    this.draw();
  }

  pan(share) {
    const span = this.view.t1 - this.view.t0;
    this.to(this.view.t0 + share * span, span);
  }

  to(t0, span) {
    const full = wholeSpan(this.model);
    this.shows = span >= (full.t1 - full.t0) * 0.999 ? wholeSpan : null;
    this.view.t0 = Math.min(Math.max(t0, full.t0), full.t1 - span);
    this.view.t1 = this.view.t0 + span;
    this.remember();
    this.draw();
  }

  wheel(event) {
    const { x } = this.place(event);
    if (event.shiftKey || x < this.view.gutter) return; // scrolls the lanes
    if (performance.now() - (this.pageScrolled ?? -1e9) < 250) return; // the page is being scrolled past
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / 1000);
    else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.003))), this.seconds(x));
    this.move(event); // another op may be below the pointer now
  }

  place(event) {
    const rect = this.canvas.getBoundingClientRect();
    return { x: event.clientX - rect.left, y: event.clientY - rect.top };
  }

  down(event) {
    if (event.button !== 0 || event.target !== this.canvas) return;
    this.drag = { ...this.place(event), t0: this.view.t0, top: this.scroller.scrollTop };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { x, y } = this.place(event);
    if (this.drag) {
      const span = this.view.t1 - this.view.t0;
      if (event.pointerType === "mouse") this.scroller.scrollTop = this.drag.top - (y - this.drag.y);
      this.to(this.drag.t0 - ((x - this.drag.x) / (this.view.width - this.view.gutter)) * span, span);
      return;
    }
    const slack = (4 * (this.view.t1 - this.view.t0)) / (this.view.width - this.view.gutter);
    const found = y > AXIS && x > this.view.gutter ? itemAt(this.model, this.seconds(x), y - AXIS + this.view.scroll, slack) : null;
    this.choose(found?.item ? found : null, x, y);
  }

  choose(found, x, y) {
    if (found?.item !== this.chosen?.item) {
      this.chosen = found;
      this.draw();
    }
    this.show(found ? { lines: facts(this.model, found.lane, found.item), x, y, width: this.view.width, height: this.view.height } : null);
  }

  key(event) {
    const acts = {
      ArrowLeft: () => (event.shiftKey ? this.step(-1) : this.pan(-0.1)),
      ArrowRight: () => (event.shiftKey ? this.step(1) : this.pan(0.1)),
      ArrowUp: () => this.stepLane(-1),
      ArrowDown: () => this.stepLane(1),
      "+": () => this.zoom(0.7),
      "=": () => this.zoom(0.7),
      "-": () => this.zoom(1 / 0.7),
      0: () => this.go(incident),
      Escape: () => this.choose(null),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  step(by) {
    const lane = this.chosen?.lane ?? this.model.lanes[0];
    if (!lane?.items.length) return;
    const at = this.chosen ? lane.items.indexOf(this.chosen.item) : -1;
    this.select(lane, lane.items[Math.min(Math.max(at + by, 0), lane.items.length - 1)]);
  }

  stepLane(by) {
    const { lanes } = this.model;
    const at = this.chosen ? lanes.indexOf(this.chosen.lane) + by : 0;
    const lane = lanes[Math.min(Math.max(at, 0), lanes.length - 1)];
    if (lane) this.select(lane, lane.items[lane.items.length - 1]);
  }

  select(lane, item) {
    if (!item) return;
    const { t0, t1, height, scroll } = this.view;
    if (item.end < t0 || item.start > t1) this.to(item.start - (t1 - t0) / 2, t1 - t0);
    if (lane.y < scroll) this.scroller.scrollTop = lane.y;
    else if (lane.y + lane.height > scroll + height - AXIS) this.scroller.scrollTop = lane.y + lane.height - height + AXIS;
    const x = Math.min(Math.max(scale(this.view)(item.start), this.view.gutter), this.view.width - 40);
    this.choose({ lane, item }, x, AXIS + lane.y - this.scroller.scrollTop + lane.height / 2);
  }
}

const incident = (model) => ({ t0: -model.window * 0.01, t1: model.window * 1.005 });
const wholeSpan = (model) => ({ t0: -model.span * 0.01, t1: model.span * 1.005 });

function matching(model, { lane, item }) {
  const other = model.lanes.find((one) => one.rank === lane.rank);
  const same = other?.items.find((one) => one.kind === item.kind && one.group === item.group && one.seq === item.seq);
  return same ? { lane: other, item: same } : null;
}

/** @param {{data: Record<string, any>}} props a timeline answer */
export function Lanes({ data, finding }) {
  const box = useRef(null);
  const [tip, setTip] = useState(null);
  const picture = useRef(null);
  const [error, fail] = useState(null);
  if (error) throw error; // to the boundary around
  picture.current ??= new Picture(setTip, fail);
  useEffect(() => picture.current.mount(box.current), []);
  useEffect(() => picture.current.take(laneModel(data, finding)), [data]);
  const act = (name, ...given) => () => picture.current[name](...given);
  return html`
    <p class="tools">
      <button type="button" onClick=${act("zoom", 0.5)}>Zoom in</button> <button type="button" onClick=${act("zoom", 2)}>Zoom out</button>
      ${" "}<button type="button" onClick=${act("go", incident)}>Incident</button> <button type="button" onClick=${act("go", wholeSpan)}>Whole span</button>
      ${" "}<span class="legend">${list(data.groups).slice(0, 12).map((name, i) => html`<span key=${i}><i class=${`swatch g${i % 8}`}></i>${letter(i)} ${text(name)}</span>`)}
        <span><i class="swatch hatched"></i>not joined</span></span>
    </p>
    <div class="lanes" ref=${box} tabindex="0" role="group" aria-label="Timeline of the ranks" aria-describedby="lanes-keys">
      <div class="lanes-scroll"><canvas></canvas><div class="lanes-space"></div></div>
      <${Tip} tip=${tip} />
    </div>
    <p class="muted small" id="lanes-keys">Mouse wheel: zoom. Drag: move. Keys: ← → move, + − zoom, 0 the incident, ↑ ↓ lane, Shift ← → op. Wheel on the labels, or with Shift: scroll the lanes.</p>
  `;
}

/** A box near the pointer, or near the op that the keyboard chose. */
export function Tip({ tip }) {
  const ref = useRef(null);
  useEffect(() => {
    const element = ref.current;
    if (!element || !tip) return;
    const { offsetWidth: w, offsetHeight: h } = element;
    const left = tip.x + 16 + w > tip.width ? Math.max(2, tip.x - w - 12) : tip.x + 16;
    const top = tip.y + 14 + h > tip.height ? Math.max(2, tip.y - h - 10) : tip.y + 14;
    element.style.transform = `translate(${Math.min(left, Math.max(2, tip.width - w - 2))}px, ${top}px)`;
  }, [tip]);
  return html`<div class=${tip ? "tip" : "tip empty"} ref=${ref} role="status">${(tip?.lines ?? []).map((one, i) => html`<div key=${i}>${one}</div>`)}</div>`;
}
