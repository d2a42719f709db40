// Looks again every few seconds, and shows times in the reader's zone with UTC beside. Without it the page can be read all the same.
"use strict";

const EVERY_MS = 5000;
const away = document.getElementById("away");
let tag = null;
let awaySince = null;
let plot = null;

function localTimes() {
  for (const each of document.querySelectorAll("time")) {
    if (!each.title) {
      each.title = each.textContent;
      const at = new Date(each.dateTime);
      const utc = at.getTimezoneOffset() === 0 ? "UTC" : `(${at.toISOString().slice(11, 16)} UTC)`;
      each.textContent = `${at.toLocaleString()} ${utc}`;
    }
  }
}

function plotSize(holder) {
  return { width: Math.max(holder.clientWidth - 24, 280), height: 240 };
}

// The same points as in the server's picture, with their figures under the pointer.
function lagPlot() {
  const holder = document.getElementById("lag");
  if (!holder || !window.uPlot) {
    return;
  }
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => colours.getPropertyValue(name).trim();
  const line = (label, name, dash) => ({ label, stroke: colour(name), width: 1.5, dash, points: { show: false } });
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const series = [{}, line("lag, s", "--run"), line("bound, s", "--bad", [6, 4]), line("published lag, s", "--good")];
  plot = new uPlot({ ...plotSize(holder), series, axes: [axis, { ...axis, size: 64 }] }, JSON.parse(holder.dataset.points), holder);
  plot.root.setAttribute("aria-hidden", "true");
  holder.querySelector("svg").classList.add("unseen");
}

function isAway(reason) {
  awaySince = awaySince || new Date();
  away.textContent = `This page is from before ${awaySince.toLocaleTimeString()}: ${reason}`;
  away.hidden = false;
}

async function look() {
  try {
    const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      tag = answer.headers.get("ETag");
      const read = new DOMParser().parseFromString(await answer.text(), "text/html");
      const inside = document.getElementById("main");
      if (!inside.contains(document.activeElement) || document.activeElement === inside) {
        const open = [...inside.querySelectorAll("details")].map((each) => each.open);
        inside.replaceChildren(...read.getElementById("main").childNodes);
        inside.querySelectorAll("details").forEach((each, number) => { each.open = open[number] ?? each.open; });
        localTimes();
        lagPlot();
      }
    } else if (answer.status !== 304) {
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
