/**
 * Addresses of pages. Links are real `<a href>`, so that a new tab and a copied address work; a
 * plain click changes the address without a new load.
 */
import { useEffect, useState } from "../../vendor/standalone.module.js";
import { segment } from "./format.js";

/** @typedef {{page: "overview" | "finding" | "job" | "history" | "none", name: string, query: URLSearchParams, path: string}} Route */

/** @param {Location | URL} at @returns {Route} */
export function routeOf(at) {
  const query = new URLSearchParams(at.search);
  const path = at.pathname;
  const route = (page, name = "") => ({ page, name, query, path: path + at.search });
  if (path === "/") return route("overview");
  if (path === "/history") return route("history");
  const found = /^\/(findings|jobs)\/(.+)$/.exec(path);
  if (!found) return route("none");
  let name;
  try {
    name = decodeURIComponent(found[2]);
  } catch {
    return route("none");
  }
  return route(found[1] === "jobs" ? "job" : "finding", name);
}

export const findingPath = (id) => `/findings/${segment(id)}`;
export const jobPath = (name, attempt = null) =>
  `/jobs/${segment(name)}${attempt === null ? "" : `?attempt=${attempt}`}`;
export const jobApi = (name, query) => `/api/v1/jobs/${segment(name)}?${query}`;

/** @type {Set<() => void>} */
const listeners = new Set();

/** @param {string} path @param {{replace?: boolean}} [options] */
export function go(path, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  for (const listener of [...listeners]) listener();
}

/** @returns {Route} */
export function useRoute() {
  const [route, setRoute] = useState(() => routeOf(location));
  useEffect(() => {
    const look = () => setRoute(routeOf(location));
    listeners.add(look);
    addEventListener("popstate", look);
    document.addEventListener("click", follow);
    return () => {
      listeners.delete(look);
      removeEventListener("popstate", look);
      document.removeEventListener("click", follow);
    };
  }, []);
  return route;
}

/** Follow a plain click on a link to a page of this site. @param {MouseEvent} event */
function follow(event) {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
  if (!link || link.hasAttribute("download") || link.getAttribute("target")) return;
  const url = new URL(link.getAttribute("href"), location.href);
  if (url.origin !== location.origin || url.hash || routeOf(url).page === "none") return;
  event.preventDefault();
  if (url.href !== location.href) {
    go(url.pathname + url.search);
    scrollTo(0, 0);
    requestAnimationFrame(() => document.querySelector("h1")?.focus({ preventScroll: true }));
  }
}
