/**
 * The start: the session, the address, and which page is shown.
 */
import { html, render, useEffect } from "../vendor/standalone.module.js";
import { get, onUnauthorized } from "./core/api.js";
import { Finding } from "./finding/finding.js";
import { Bar, SignIn } from "./core/frame.js";
import { History } from "./overview/history.js";
import { Job } from "./job/job.js";
import { follow, stop } from "./core/live.js";
import { Overview } from "./overview/overview.js";
import { Boundary } from "./core/parts.js";
import { useRoute } from "./core/router.js";
import { set, state, useStore } from "./core/store.js";

const NONE = ({ path }) => html`<main id="main">
  <h1 tabindex="-1">No such page</h1>
  <p><code>${path}</code> is not an address of this page. <a href="/">Overview</a></p>
</main>`;

const PAGES = { overview: Overview, finding: Finding, job: Job, history: History, none: NONE };

function App() {
  const session = useStore((now) => now.session);
  const route = useRoute();
  const attempt = route.page === "job" ? route.query.get("attempt") : null;
  const locked = session?.required === true && session.signed_in !== true;
  useEffect(() => {
    if (!session || locked) stop();
    else follow(route.page === "job" ? route.name : null, attempt);
  }, [session, locked, route.page, route.name, attempt]);
  const page = route.page;
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <${Bar} locked=${locked} page=${page} />
    <${Announcer} />
    ${locked
      ? html`<${SignIn} />`
      : session === null
        ? html`<main id="main"><p class="loading">Loading</p></main>`
        : html`<${Boundary} what=${`the page ${page}`} on=${route} key=${`${page} ${route.name}`}>
            <${PAGES[page]} ...${route} route=${route} key=${`${page} ${route.name}`} />
          <//>`}
  `;
}

/** Says new findings to screen readers. */
function Announcer() {
  const said = useStore((now) => now.announcement);
  return html`<p class="hidden" role="status" aria-live="polite">${said}</p>`;
}

async function readSession() {
  try {
    set({ session: (await get("/api/v1/session")).data });
  } catch (error) {
    if (error.status === 404) set({ session: { required: false, signed_in: true, role: null } });
    else {
      set({ link: "lost", linkError: error.message });
      setTimeout(readSession, 3000);
    }
  }
}

onUnauthorized(() => {
  stop();
  set({ session: { ...state.session, required: true, signed_in: false, role: null } });
});
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
readSession();
