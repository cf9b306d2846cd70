/**
 * The map of a job on a canvas: drawing, zoom along the ranks, the cursor, and which cell the pointer means.
 */
import { BAD, heatImage } from "./heatmap.js";
import { shorten } from "../finding/lanes_draw.js";
import { fit, FONT, onTheme, theme } from "../core/theme.js";

const AXIS = 20;
const WORST = 18; // height of the row that shows the worst of all groups
const FEWEST = 8; // ranks on the screen at the highest zoom

/** Points down at a suspect's column. */
function triangle(c, x, y) {
  c.beginPath();
  c.moveTo(x - 5, y);
  c.lineTo(x + 5, y);
  c.lineTo(x, y + 7);
  c.fill();
}

export class HeatMap {
  constructor(show, choose, fail) {
    Object.assign(this, { show, choose, fail, model: null, places: new Map(), r0: 0, r1: 1, cursor: null, image: null, frame: 0 });
  }

  mount(box) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    const resize = new ResizeObserver(() => this.draw(true));
    resize.observe(box);
    const untheme = onTheme(() => this.draw(true));
    const on = (name, act, options) => this.canvas.addEventListener(name, act, options);
    on("wheel", (event) => this.wheel(event), { passive: false });
    on("pointerdown", (event) => this.down(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.up(event));
    on("pointercancel", () => (this.drag = null));
    on("pointerleave", () => this.show(null));
    box.addEventListener("keydown", (event) => this.key(event));
    const page = () => (this.pageScrolled = performance.now());
    addEventListener("scroll", page, { passive: true });
    return () => {
      resize.disconnect();
      untheme();
      removeEventListener("scroll", page);
      cancelAnimationFrame(this.frame);
    };
  }

  /** @param {Map<number, string>} places of the suspects */
  take(model, places) {
    this.places = places;
    if (this.model?.ranks !== model.ranks) [this.r0, this.r1] = [0, Math.max(1, model.ranks)];
    this.model = model;
    this.draw(true);
  }

  /** Height of a row: all rows are visible without scrolling. */
  layout() {
    const rows = this.model.rows.length;
    const width = this.box.clientWidth;
    this.rowHeight = Math.max(3, Math.min(22, Math.floor(520 / Math.max(1, rows))));
    this.gutter = width < 560 ? 88 : 170;
    this.width = width;
    this.height = AXIS + WORST + 3 + rows * this.rowHeight;
  }

  /** @param {boolean} fresh the image must be made again */
  draw(fresh = false) {
    if (!this.model || !this.box?.clientWidth) return;
    if (fresh) this.image = null;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      try {
        this.paint();
      } catch (error) {
        this.fail(error);
      }
    });
  }

  paint() {
    const began = performance.now();
    this.layout();
    const { model, gutter, width, height, rowHeight, r0, r1 } = this;
    const colours = theme();
    const c = fit(this.canvas, width, height);
    c.fillStyle = colours.bg;
    c.fillRect(0, 0, width, height);
    const ratio = devicePixelRatio || 1;
    const plot = Math.max(1, Math.round((width - gutter) * ratio));
    if (!this.image) {
      const image = heatImage(model, r0, r1, plot, ratio, colours);
      this.image = this.image ?? document.createElement("canvas");
      this.image.width = plot;
      this.image.height = image.height;
      this.image.getContext("2d").putImageData(image, 0, 0);
    }
    c.imageSmoothingEnabled = false;
    c.drawImage(this.image, 0, 0, plot, 1, gutter, AXIS, width - gutter, WORST);
    const top = AXIS + WORST + 3;
    if (model.rows.length) c.drawImage(this.image, 0, 1, plot, model.rows.length, gutter, top, width - gutter, model.rows.length * rowHeight);
    this.grid(c, colours, top);
    this.labels(c, colours, top);
    this.axis(c, colours);
    if (this.cursor) this.outline(c, colours, top);
    const took = performance.now() - began;
    this.canvas.dataset.drawMs = took.toFixed(1);
  }

  x(rank) {
    return this.gutter + ((rank - this.r0) / (this.r1 - this.r0)) * (this.width - this.gutter);
  }

  grid(c, colours, top) {
    const { model, rowHeight } = this;
    c.fillStyle = colours.bg;
    if (rowHeight >= 6) for (let row = 1; row < model.rows.length; row += 1) c.fillRect(this.gutter, top + row * rowHeight - 1, this.width, 1);
    const cell = (this.width - this.gutter) / (this.r1 - this.r0);
    if (cell < 6) return;
    for (let rank = Math.floor(this.r0); rank <= this.r1; rank += 1) c.fillRect(Math.round(this.x(rank)) - 1, AXIS, 1, this.height);
    if (cell < 14 || rowHeight < 12) return;
    c.font = FONT;
    c.textAlign = "center";
    c.textBaseline = "middle";
    for (let row = 0; row < model.rows.length; row += 1) {
      for (let rank = Math.max(0, Math.floor(this.r0)); rank < Math.min(model.ranks, this.r1); rank += 1) {
        const { mark, name } = model.byCode[model.cells[row * model.ranks + rank]];
        c.fillStyle = name === "waiting" ? "#15181c" : colours.bg; // yellow needs dark letters in both schemes
        if (mark) c.fillText(mark, this.x(rank + 0.5), top + (row + 0.5) * rowHeight);
      }
    }
    c.textAlign = "left";
  }

  labels(c, colours, top) {
    const { model, rowHeight, gutter } = this;
    c.font = FONT;
    c.textBaseline = "middle";
    c.fillStyle = colours.fg;
    c.fillText("all groups", 4, AXIS + WORST / 2);
    const every = Math.ceil(12 / rowHeight);
    for (let row = 0; row < model.rows.length; row += every) {
      const { group, groups } = model.rows[row];
      c.fillStyle = colours.muted;
      c.fillText(shorten(c, `${group}${groups > 1 ? ` ×${groups}` : ""}`, gutter - 8), 4, top + row * rowHeight + Math.max(rowHeight, 12) / 2);
    }
  }

  axis(c, colours) {
    const span = this.r1 - this.r0;
    const wanted = (span * 70) / Math.max(60, this.width - this.gutter);
    const power = 10 ** Math.max(0, Math.floor(Math.log10(wanted)));
    const step = Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= wanted) ?? 1);
    c.font = FONT;
    c.textBaseline = "middle";
    c.fillStyle = colours.muted;
    c.fillText("rank", 4, AXIS / 2);
    for (let rank = Math.ceil(this.r0 / step) * step; rank < this.r1; rank += step) {
      const x = this.x(rank);
      c.fillStyle = colours.line;
      c.fillRect(Math.round(x), AXIS - 5, 1, 5);
      c.fillStyle = colours.fg;
      if (x + c.measureText(`${rank}`).width + 3 < this.width) c.fillText(`${rank}`, x + 2, AXIS / 2 - 2);
    }
    c.fillStyle = colours.bad;
    for (const rank of this.places.keys()) if (rank >= this.r0 && rank < this.r1) triangle(c, this.x(rank + 0.5), AXIS - 7);
  }

  outline(c, colours, top) {
    const { row, rank } = this.cursor;
    const left = this.x(rank);
    const wide = Math.max(5, this.x(rank + 1) - left);
    const y = top + row * this.rowHeight;
    for (const [grow, colour] of [[2, colours.bg], [1, colours.fg]]) {
      c.strokeStyle = colour;
      c.lineWidth = 2;
      c.strokeRect(left - grow, y - grow, wide + 2 * grow - 1, this.rowHeight + 2 * grow - 1);
    }
  }

  to(r0, span) {
    const ranks = this.model.ranks;
    const wide = Math.min(Math.max(span, Math.min(FEWEST, ranks)), Math.max(1, ranks));
    this.r0 = Math.min(Math.max(0, r0), Math.max(0, ranks - wide));
    this.r1 = this.r0 + wide;
    this.draw(true);
  }

  zoom(factor, at = this.cursor?.rank ?? (this.r0 + this.r1) / 2) {
    const span = this.r1 - this.r0;
    const wide = Math.min(Math.max(span * factor, Math.min(FEWEST, this.model.ranks)), this.model.ranks);
    this.to(at - ((at - this.r0) / span) * wide, wide);
  }

  place(event) {
    const rect = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - rect.left, event.clientY - rect.top];
    const rank = Math.floor(this.r0 + ((x - this.gutter) / (this.width - this.gutter)) * (this.r1 - this.r0));
    const row = Math.floor((y - AXIS - WORST - 3) / this.rowHeight);
    const inside = x >= this.gutter && rank >= 0 && rank < this.model.ranks && y >= AXIS && row < this.model.rows.length;
    return { x, y, rank, row: Math.max(-1, row), inside };
  }

  /** Near a pixel, the worst rank counts: a pointer cannot hit one of 20 ranks below a pixel. */
  nearest({ rank, row }) {
    const { model } = this;
    const each = (this.r1 - this.r0) / (this.width - this.gutter);
    const reach = each < 0.3 ? 0 : Math.ceil(2 * each);
    const code = (one) => (row < 0 ? model.worst[one] : model.cells[row * model.ranks + one]);
    let best = rank;
    for (let one = Math.max(0, rank - reach); one <= Math.min(model.ranks - 1, rank + reach); one += 1) {
      const [a, b] = [model.levels[code(one)], model.levels[code(best)]];
      if (a > b || (a === b && Math.abs(one - rank) < Math.abs(best - rank))) best = one;
    }
    return { rank: best, row };
  }

  tipOf({ rank, row }, x, y) {
    const { model } = this;
    const state = model.byCode[row < 0 ? model.worst[rank] : model.cells[row * model.ranks + rank]];
    const group = row < 0 ? "worst of all groups" : model.rows[row].group;
    const place = this.places.has(rank) ? [`suspect: ${this.places.get(rank)}`] : [];
    this.show({ lines: [`rank ${rank}, ${group}`, ...place, `${state.label}: ${state.text}`], x, y, width: this.width, height: this.height });
  }

  wheel(event) {
    if (!this.model || event.shiftKey || performance.now() - (this.pageScrolled ?? -1e9) < 250) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.to(this.r0 + ((this.r1 - this.r0) * event.deltaX) / 1000, this.r1 - this.r0);
    else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.003))), this.target(event));
    this.move(event);
  }

  /** Zoom goes to the bad rank that is visible near the pointer, or to the pointer. */
  target(event) {
    const at = this.place(event);
    const exact = this.r0 + ((at.x - this.gutter) / (this.width - this.gutter)) * (this.r1 - this.r0);
    if (!at.inside) return exact;
    const { rank, row } = this.nearest(at);
    const code = row < 0 ? this.model.worst[rank] : this.model.cells[row * this.model.ranks + rank];
    return rank !== at.rank && this.model.levels[code] >= BAD ? rank + 0.5 : exact;
  }

  down(event) {
    if (event.button !== 0 || !this.model) return;
    this.drag = { ...this.place(event), r0: this.r0, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (!this.model) return;
    const at = this.place(event);
    if (this.drag) {
      if (Math.abs(at.x - this.drag.x) > 4) this.drag.moved = true;
      const span = this.r1 - this.r0;
      if (this.drag.moved) this.to(this.drag.r0 - ((at.x - this.drag.x) / (this.width - this.gutter)) * span, span);
    } else if (at.inside) this.tipOf(this.nearest(at), at.x, at.y);
    else this.show(null);
  }

  up(event) {
    const clicked = this.drag && !this.drag.moved;
    this.drag = null;
    const at = this.place(event);
    if (!clicked || !at.inside) return;
    const { rank, row } = this.nearest(at);
    this.cursor = { rank, row: Math.max(0, row) };
    this.draw();
    this.choose(rank);
  }

  key(event) {
    if (!this.model || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? Math.max(1, Math.round((this.r1 - this.r0) / 10)) : 1;
    const acts = {
      ArrowLeft: () => this.step(-far, 0), ArrowRight: () => this.step(far, 0),
      ArrowUp: () => this.step(0, -1), ArrowDown: () => this.step(0, 1),
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6),
      0: () => this.to(0, this.model.ranks), Enter: () => this.cursor && this.choose(this.cursor.rank), Escape: () => this.show(null),
    };
    if (!acts[event.key] || event.target !== this.box) return;
    event.preventDefault();
    acts[event.key]();
  }

  step(ranks, rows) {
    const { model } = this;
    const from = this.cursor ?? { rank: Math.floor(this.r0), row: 0 };
    const rank = Math.min(Math.max(0, from.rank + ranks), model.ranks - 1);
    const row = Math.min(Math.max(0, from.row + rows), model.rows.length - 1);
    this.cursor = { rank, row };
    if (rank < this.r0 || rank >= this.r1) this.to(rank - (this.r1 - this.r0) / 2, this.r1 - this.r0);
    this.draw();
    this.tipOf(this.cursor, this.x(rank), AXIS + WORST + 3 + row * this.rowHeight);
  }
}
