// Keeps the regions of a page up to date: told that something changed, it asks for the page again and patches them.

import { localise } from "./times.js";

const LEAST_PAUSE = 400; // ms between two looks
const SHARE = 4; // a look that took long is followed by a pause so many times as long
const LONGEST_BACKOFF = 30_000;

const from = document.body.dataset.liveFrom;
const status = document.getElementById("connection");
let source, wanted = false, looking = false, backoff = 1000;

function say(words) {
  if (!status) return;
  status.hidden = !words;
  if (status.textContent !== words) status.textContent = words;
}

// Children with an id are the same wherever they stand; others are matched by their place.
function patch(before, after) {
  if (before.isEqualNode(after)) return;
  if (before.nodeType !== after.nodeType || before.nodeName !== after.nodeName) return before.replaceWith(after);
  if (before.nodeType !== Node.ELEMENT_NODE) {
    before.nodeValue = after.nodeValue;
    return;
  }
  for (const { name } of [...before.attributes]) {
    // Whether somebody opened it is theirs to say.
    if (!after.hasAttribute(name) && !(name === "open" && before.nodeName === "DETAILS")) before.removeAttribute(name);
  }
  for (const { name, value } of after.attributes) {
    if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  }
  const known = new Map([...before.children].filter((child) => child.id).map((child) => [child.id, child]));
  let here = before.firstChild;
  for (const wanted of [...after.childNodes]) {
    const same = wanted.id ? known.get(wanted.id) : here && !here.id && here.nodeName === wanted.nodeName ? here : null;
    if (!same) {
      before.insertBefore(wanted, here);
    } else {
      if (same === here) here = here.nextSibling;
      else before.insertBefore(same, here);
      patch(same, wanted);
    }
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

async function look() {
  const began = performance.now();
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (answer.redirected && new URL(answer.url).pathname === "/sign-in") return location.reload();
  if (!answer.ok) throw new Error(String(answer.status));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const took = performance.now() - began;
  localise(page);
  for (const region of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(region.id);
    if (fresh) patch(region, fresh);
  }
  document.title = page.title;
  document.dispatchEvent(new CustomEvent("looked"));
  await new Promise((done) => setTimeout(done, Math.max(LEAST_PAUSE, took * SHARE)));
}

async function refresh() {
  wanted = true;
  if (looking) return;
  looking = true;
  try {
    while (wanted && !document.hidden) {
      wanted = false;
      await look();
    }
  } catch {
    say("cannot be reached: what you see may be old");
  } finally {
    looking = false;
  }
}

function follow() {
  source?.close();
  source = new EventSource(from);
  source.onopen = () => {
    backoff = 1000;
    say("live");
  };
  source.onmessage = refresh;
  source.onerror = () => {
    say("not live just now");
    // A browser tries again by itself, but not after a refusal.
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => { if (!document.hidden) { follow(); refresh(); } }, backoff);
      backoff = Math.min(backoff * 2, LONGEST_BACKOFF);
    }
  };
}

if (from && document.querySelector("[data-live]")) {
  follow();
  // Browsers have few connections to one server: a page that nobody looks at gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source.close();
    else {
      follow();
      refresh();
    }
  });
}
