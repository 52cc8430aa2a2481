// Keeps the regions of a page up to date: told that something changed, it asks for the page again and patches them.

import { localise } from "./times.js";

const LEAST_PAUSE = 400; // ms between two looks
const SHARE = 4; // a look that took long is followed by a pause so many times as long
const LOOK_AGAIN = 3000; // ms after a look that failed
const LONGEST_BACKOFF = 30_000;
const QUIET = 5000; // ms between two things that are said to screen readers
const UNHEARD = 3000; // ms without a connection, after which the page says so at its top

const LIVE = "live";
const AT_TIMES = "up to date now and then";

const status = document.getElementById("connection");
const warning = document.getElementById("unheard");
let from = document.body.dataset.liveFrom;
let told = -QUIET, telling, source, unheard, wanted = false, looking = false, backoff = 1000;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function say(words) {
  status.hidden = !words;
  if (status.textContent !== words) status.textContent = words;
  clearTimeout(unheard);
  if (words === LIVE || words === AT_TIMES) warning.hidden = true;
  else unheard = setTimeout(() => { warning.hidden = false; }, UNHEARD);
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
  patchChildren(before, [...after.childNodes]);
}

function patchChildren(before, wanted) {
  const kept = new Set(wanted.map((child) => child.id).filter(Boolean));
  // What is gone leaves first: whatever stays then stands where it is, and keeps the focus.
  for (const child of [...before.children]) if (child.id && !kept.has(child.id)) child.remove();
  const known = new Map([...before.children].filter((child) => child.id).map((child) => [child.id, child]));
  let here = before.firstChild;
  for (const child of wanted) {
    const same = child.id ? known.get(child.id) : here && !here.id && here.nodeName === child.nodeName ? here : null;
    // Nor is anything moved for the blanks beside what is gone.
    while (same && here !== same && here?.nodeType === Node.TEXT_NODE) {
      const next = here.nextSibling;
      here.remove();
      here = next;
    }
    if (!same) {
      before.insertBefore(child, here);
    } else {
      if (same === here) here = here.nextSibling;
      else before.insertBefore(same, here);
      patch(same, child);
    }
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

// Whoever was at something that has gone goes on near it, not at the top of the page.
function refocus(region, focused) {
  if (!focused || focused.isConnected) return;
  const near = region.closest("section")?.querySelector("h2, h1") ?? document.querySelector("h1");
  near.tabIndex = -1;
  near.focus({ preventScroll: true });
}

// Screen readers hear what a text says now, after a pause however quickly it changes.
function tell() {
  clearTimeout(telling);
  const said = [...document.querySelectorAll("[data-says]")].map((region) => [region, text(region.dataset.says)]);
  if (said.every(([region, words]) => region.textContent === words)) return;
  const wait = told + QUIET - performance.now();
  if (wait > 0) telling = setTimeout(tell, wait);
  else {
    told = performance.now();
    for (const [region, words] of said) if (region.textContent !== words) region.textContent = words;
  }
}

const text = (id) => document.getElementById(id).textContent.trim();

async function look() {
  const began = performance.now();
  const answer = await fetch(location.href, { headers: { Accept: "text/html", "Forenotice-Look": "1" }, credentials: "same-origin" });
  const elsewhere = answer.redirected && new URL(answer.url).pathname === "/sign-in";
  // What it showed is gone, or whoever looks has signed out: the page itself says it best.
  if (elsewhere || answer.status === 404) return location.reload();
  if (!answer.ok) throw new Error(String(answer.status));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const took = performance.now() - began;
  localise(page);
  let found = false;
  for (const region of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(region.id);
    if (!fresh) continue;
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    patch(region, fresh);
    refocus(region, focused);
    found = true;
  }
  if (found) document.title = page.title;
  tell();
  from = page.body.dataset.liveFrom ?? from;
  document.dispatchEvent(new CustomEvent("looked"));
  await pause(Math.max(LEAST_PAUSE, took * SHARE));
}

async function refresh() {
  wanted = true;
  if (looking) return;
  looking = true;
  while (wanted && !document.hidden) {
    wanted = false;
    try {
      await look();
      say(source?.readyState === EventSource.OPEN ? LIVE : AT_TIMES);
    } catch {
      wanted = true;
      say("cannot be reached: what you see may be old");
      await pause(LOOK_AGAIN);
    }
  }
  looking = false;
}

function follow() {
  source?.close();
  source = new EventSource(from);
  source.onopen = () => {
    backoff = 1000;
    say(LIVE);
  };
  source.onmessage = refresh;
  source.onerror = () => {
    say("not live just now");
    // A browser tries again by itself, but not after a refusal, such as of too many streams.
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => { if (!document.hidden) { follow(); refresh(); } }, backoff);
      backoff = Math.min(backoff * 2, LONGEST_BACKOFF);
    }
  };
}

if (from && document.querySelector("[data-live]")) {
  if (!document.hidden) follow();
  // Browsers have few connections to one server: a page that nobody looks at gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source?.close();
    else {
      follow();
      refresh();
    }
  });
  // What is in no journal, such as when a VM last polled, is looked at now and then.
  const every = Number(document.body.dataset.lookEvery);
  if (every) setInterval(() => { if (!document.hidden) refresh(); }, every * 1000);
}
