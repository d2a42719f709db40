// Looks again every few seconds, and shows times in the reader's zone with UTC beside. Without it the page can be read all the same.
"use strict";

const EVERY_MS = 5000;
const PATIENCE_MS = 15000;
const away = document.getElementById("away");
let tag = null;
let awaySince = null;
let plot = null;

function localTimes() {
  for (const each of document.querySelectorAll("time")) {
    if (!each.title) {
      each.title = each.textContent;
      each.textContent = localText(new Date(each.dateTime));
    }
  }
}

function localText(at) {
  return `${at.toLocaleString()} ${at.getTimezoneOffset() === 0 ? "UTC" : `(${at.toISOString().slice(11, 16)} UTC)`}`;
}

function plotSize(holder) {
  return { width: Math.max(holder.clientWidth - 24, 280), height: 240 };
}

// The same points as in the server's picture, with their figures under the pointer.
function lagPlot() {
  const holder = document.getElementById("lag");
  if (!holder || !window.uPlot || holder.querySelector(".uplot")) {
    return;
  }
  plot?.destroy(); // it listens to the window
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => colours.getPropertyValue(name).trim();
  const line = (label, name, dash) => ({ label, stroke: colour(name), width: 1.5, dash, points: { show: false } });
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const at = { label: "at", value: (_, seconds) => (seconds === null ? "–" : localText(new Date(seconds * 1000))) };
  const series = [at, line("lag, s", "--run"), line("bound, s", "--bad", [6, 4]), line("published lag, s", "--good")];
  plot = new uPlot({ ...plotSize(holder), series, axes: [axis, { ...axis, size: 64 }] }, JSON.parse(holder.dataset.points), holder);
  plot.root.setAttribute("aria-hidden", "true");
  holder.querySelector("svg").classList.add("unseen");
}

function isAway(reason) {
  awaySince = awaySince || new Date();
  away.textContent = `This page is from before ${localText(awaySince)}: ${reason}`;
  away.hidden = false;
}

// Changes what differs and nothing else: focus, a selection and what is unfolded stay where they are.
function become(old, next) {
  const kept = { TIME: "datetime", DIV: "data-points" }[old.nodeName];
  if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName) {
    old.replaceWith(next);
  } else if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) {
      old.data = next.data;
    }
  } else if (kept && (old.hasAttribute(kept) || next.hasAttribute(kept))) { // its content was changed here
    if (old.getAttribute(kept) !== next.getAttribute(kept)) {
      old.replaceWith(next);
    }
  } else {
    const names = new Set([...old.getAttributeNames(), ...next.getAttributeNames()]);
    names.delete("open");
    for (const name of names) {
      if (!next.hasAttribute(name)) {
        old.removeAttribute(name);
      } else if (old.getAttribute(name) !== next.getAttribute(name)) {
        old.setAttribute(name, next.getAttribute(name));
      }
    }
    const before = [...old.childNodes];
    for (const each of [...next.childNodes]) {
      const isText = each.nodeType === Node.TEXT_NODE; // found elsewhere it would take away what is before it
      const found = (isText ? before.slice(0, 1) : before).findIndex((other) => isLike(other, each));
      if (found < 0) {
        old.insertBefore(each, before[0] || null);
      } else {
        before.splice(0, found).forEach((other) => other.remove());
        become(before.shift(), each);
      }
    }
    before.forEach((each) => each.remove());
  }
}

function isLike(one, other) {
  return one.nodeName === other.nodeName && named(one) === named(other);
}

function named(each) {
  return each.nodeName === "H2" ? each.textContent : `${each.getAttribute?.("class")} ${each.getAttribute?.("aria-label")}`;
}

function words(each) {
  return each.getAttribute("href") || each.getAttribute("aria-label") || each.textContent;
}

function show(read) {
  const inside = document.getElementById("main");
  const focused = document.activeElement;
  const wanted = inside.contains(focused) && focused !== inside ? words(focused) : null;
  become(inside, read.getElementById("main"));
  if (wanted !== null && (!focused.isConnected || words(focused) !== wanted)) { // it has moved
    const moved = [...inside.querySelectorAll("a, summary, [tabindex]")].find((each) => words(each) === wanted);
    (moved || inside).focus({ preventScroll: true });
  }
  document.title = read.title;
  localTimes();
  lagPlot();
}

async function look() {
  try {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch(location.href, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    const wasProblem = "problem" in document.getElementById("main").dataset;
    if (answer.status === 200) {
      show(new DOMParser().parseFromString(await answer.text(), "text/html"));
      tag = answer.headers.get("ETag");
    } else if (answer.status !== 304 && !wasProblem) {
      isAway(`the server answered ${answer.status}`);
      return;
    }
    awaySince = null;
    away.hidden = true;
  } catch {
    isAway("the server does not answer");
  } finally {
    setTimeout(look, document.hidden ? 6 * EVERY_MS : EVERY_MS);
  }
}

window.addEventListener("resize", () => plot?.root.isConnected && plot.setSize(plotSize(plot.root.parentElement)));
localTimes();
lagPlot();
setTimeout(look, EVERY_MS);
