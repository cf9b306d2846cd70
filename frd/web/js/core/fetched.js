/**
 * A hook for an answer that is read again when its version has changed.
 */
import { useEffect, useRef, useState } from "../../vendor/standalone.module.js";
import { get } from "./api.js";

const NOTHING = { path: "", data: null, error: "" };

/** The newest answer at `path`. A request that runs when the version changes is let finish, and then
 * it is asked again: on a slow link something must arrive. A change of the path ends it.
 * @param {string} path @param {unknown} version
 * @returns {{data: Record<string, any> | null, error: string}} after an error, `data` is the answer before */
export function useFetched(path, version) {
  const [answer, setAnswer] = useState(NOTHING);
  const wanted = useRef(version);
  wanted.current = version;
  const ask = useRef(() => {});
  useEffect(() => {
    const stop = new AbortController();
    let asked = NOTHING; // the version; at first none
    let etag = "";
    let running = false;
    ask.current = async () => {
      if (running) return;
      running = true;
      while (!stop.signal.aborted && asked !== wanted.current) {
        asked = wanted.current;
        try {
          const found = await get(path, { etag, signal: stop.signal });
          if (stop.signal.aborted) return;
          etag = found.etag;
          setAnswer((before) => ({ path, data: found.data ?? before.data, error: "" }));
        } catch (error) {
          if (stop.signal.aborted) return;
          setAnswer((before) => ({ path, data: before.path === path ? before.data : null, error: error.message }));
        }
      }
      running = false;
    };
    return () => stop.abort();
  }, [path]);
  useEffect(() => {
    ask.current();
  }, [path, version]);
  return answer.path === path ? answer : NOTHING;
}
