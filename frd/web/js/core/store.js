/**
 * What the page knows: one object, and a hook that renders a component when its part has changed.
 */
import { useEffect, useReducer, useRef } from "../../vendor/standalone.module.js";

/**
 * @typedef {object} State
 * @property {Record<string, any> | null} session   answer of /api/v1/session
 * @property {Record<string, any> | null} jobs      newest answer of /api/v1/jobs
 * @property {Record<string, any> | null} health    newest answer of /api/v1/health
 * @property {any[] | null} open                    open findings, newest first; null before the first answer
 * @property {boolean} openCut                      there are more, which are older
 * @property {string} openError                     why the newest request for them failed, or ""
 * @property {Record<string, any> | null} changed   the finding that the newest event is about
 * @property {Record<string, any> | null} job       newest view=summary of the job in the address
 * @property {string} jobError                      why there is none
 * @property {"connecting" | "live" | "polling" | "lost"} link
 * @property {string} linkError
 * @property {string} announcement                  for screen readers
 */

/** @type {State} */
export const state = {
  session: null,
  jobs: null,
  health: null,
  open: null,
  openCut: false,
  openError: "",
  changed: null,
  job: null,
  jobError: "",
  link: "connecting",
  linkError: "",
  announcement: "",
};

/** @type {Set<() => void>} */
const listeners = new Set();

/** @param {Partial<State>} changes */
export function set(changes) {
  Object.assign(state, changes);
  for (const listener of [...listeners]) listener();
}

/** @template T @param {(state: State) => T} select @returns {T} */
export function useStore(select) {
  const [, again] = useReducer((n) => n + 1, 0);
  const value = select(state);
  const kept = useRef({ value, select });
  kept.current = { value, select };
  useEffect(() => {
    const look = () => {
      if (!Object.is(kept.current.select(state), kept.current.value)) again(null);
    };
    look();
    listeners.add(look);
    return () => listeners.delete(look);
  }, []);
  return value;
}
