/**
 * The colours of app.css for code that draws on a canvas, which has no style sheet.
 */
const dark = matchMedia("(prefers-color-scheme: dark)");

/** @type {Record<string, string> | null} */
let cached = null;
/** @type {Set<() => void>} */
const listeners = new Set();
dark.addEventListener("change", () => {
  cached = null;
  for (const listener of [...listeners]) listener();
});

const NAMES = [
  "bg", "fg", "muted", "line", "panel", "link", "bad", "bad-bg", "warn", "focus",
  "cell-none", "cell-ok", "cell-waiting", "cell-stuck", "cell-missing", "cell-gone", "cell-unknown", "cell-other",
  "g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7",
];

/** Values of the custom properties of app.css, by name without the dashes. @returns {Record<string, string>} */
export function theme() {
  if (cached) return cached;
  const style = getComputedStyle(document.documentElement);
  cached = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim() || "#888888"]));
  return cached;
}

/** Call `listener` when light and dark change. @param {() => void} listener */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** @param {string} hex "#rrggbb" @returns {number} a pixel of ImageData as a little-endian 32-bit number */
export function pixel(hex) {
  const value = parseInt(hex.slice(1, 7), 16) || 0;
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

export const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

/** Fit a canvas to `width` x `height` CSS pixels; answers its context, scaled to CSS pixels.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function fit(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
