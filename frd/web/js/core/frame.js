/**
 * What surrounds every page: the bar with the state of the connection, the sign-in form, the title.
 */
import { html, useEffect, useState } from "../../vendor/standalone.module.js";
import { send } from "./api.js";
import { dataAge } from "./clock.js";
import { age, count, list, record, text } from "./format.js";
import { Keys } from "./keys.js";
import { useTick } from "./parts.js";
import { set, useStore } from "./store.js";

/** @param {{locked: boolean, page: string}} props */
export function Bar({ locked, page }) {
  const session = useStore((now) => now.session);
  const at = (name) => (page === name ? "page" : undefined);
  return html`<header class="bar">
    <nav aria-label="Pages">
      <a class="brand" href="/" aria-current=${at("overview")}>frd</a>
      <a href="/history" aria-current=${at("history")}>History</a>
    </nav>
    ${locked ? null : html`<${Connection} /><${Keys} />`}
    ${session?.required && session.signed_in
      ? html`<span class="who">signed in: ${text(session.role)} <${SignOut} /></span>`
      : null}
  </header>`;
}

/** `live`, `polling`, or how old the data on the screen is. */
function Connection() {
  useTick();
  const link = useStore((now) => now.link);
  const error = useStore((now) => now.linkError);
  const old = dataAge();
  const late = old !== null && old >= 12 ? ` — data from ${age(old)} ago` : "";
  const said = {
    connecting: ["", "connecting"],
    live: [late ? "warn" : "good", `live${late}`],
    polling: ["warn", `polling every 5 s${late}`],
    lost: ["bad", `connection lost${old === null ? "" : ` — data from ${age(old)} ago`}`],
  }[link];
  return html`<p class=${`connection ${said[0]}`} title=${error} role=${link === "lost" ? "alert" : undefined}>
    ${said[1]}${link === "lost" && error ? html`<span class="why"> (${error})</span>` : ""}
  </p>`;
}

function SignOut() {
  const [error, setError] = useState("");
  const leave = async () => {
    try {
      set({ session: await send("DELETE", "/api/v1/session"), jobs: null, open: null, health: null, job: null });
    } catch (failure) {
      setError(failure.message);
    }
  };
  return html`<button type="button" onClick=${leave}>Sign out</button>${error ? html` <span class="bad">${error}</span>` : ""}`;
}

export function SignIn() {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useTitle("sign in");
  const submit = async (event) => {
    event.preventDefault();
    const input = event.currentTarget.elements.token;
    setBusy(true);
    setError("");
    try {
      set({ session: await send("POST", "/api/v1/session", { token: input.value }), link: "connecting" });
    } catch (failure) {
      setError(failure.message);
      setBusy(false);
      input.select();
    }
  };
  return html`<main id="main" class="sign-in">
    <h1 tabindex="-1">Sign in</h1>
    <p>This service requires a token. It is sent to the service once; the browser keeps only a cookie.</p>
    <form method="post" action="/" onSubmit=${submit}>
      <input type="text" name="username" autocomplete="username" value="frd" hidden readonly />
      <label for="token">Token</label>
      <input id="token" name="token" type="password" autocomplete="current-password" required autofocus spellcheck=${false}
        aria-describedby="sign-in-error" />
      <button type="submit" disabled=${busy}>Sign in</button>
      <p id="sign-in-error" class="bad" role="alert">${error}</p>
    </form>
  </main>`;
}

/** Whether this session may change findings, and read dumps and logs. */
export const useMay = () => useStore((now) => now.session !== null && (now.session.required !== true || now.session.role === "operator"));

/** The title of the tab: open findings first, then what is wrong with frd, then the page. @param {string} page */
export function useTitle(page) {
  const open = useStore((now) => now.open?.length ?? 0);
  const more = useStore((now) => now.openCut);
  const link = useStore((now) => now.link);
  const blind = useStore((now) => list(record(now.jobs?.watching).blind).length > 0);
  useEffect(() => {
    const parts = [link === "lost" ? "connection lost" : blind ? "blind" : "", page, "frd"].filter(Boolean);
    document.title = `${open ? `● ${more ? `${open}+ findings` : count(open, "finding")} · ` : ""}${parts.join(" · ")}`;
  }, [page, open, more, link, blind]);
}
