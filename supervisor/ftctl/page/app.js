// The event stream, and when the timeline is drawn again.

import { at, set } from "./cells.js";
import { draw } from "./draw.js";
import { history } from "./job.js";
import { order } from "./ranks.js";
import { addRecord } from "./records.js";

const SILENT = 20_000; // ms without an event: the connection is dead
const RETRY = 2_000; // ms
const PICTURE = [3_000, 30_000]; // ms between two pictures: at least, at most; the server answers at once if nothing is new
const HISTORY = 15_000; // ms between two looks at the history

let source = null;
let last = null; // the id of the newest record
let all = false; // ranks
let lastEvent = Date.now();
let running = true;
let drawnAt = 0;
let due = 0; // a timer
let wide = 0;

function connect() {
  source?.close();
  const query = new URLSearchParams();
  if (last) query.set("after", last);
  if (all) query.set("ranks", "all");
  source = new EventSource(`events?${query}`);
  lastEvent = Date.now();
  const on = (name, act) => source.addEventListener(name, (event) => { alive(); act(event); });
  on("beat", () => {});
  on("snapshot", (event) => snapshot(JSON.parse(event.data)));
  on("record", (event) => { last = event.lastEventId; record(JSON.parse(event.data)); });
  on("fresh", () => { last = null; at("record-rows").replaceChildren(); picture(); });
  on("unread", (event) => unread(JSON.parse(event.data).why));
  source.addEventListener("error", () => {
    link("lost", "Connection lost; trying again …");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY);
  });
}

function alive() {
  lastEvent = Date.now();
  link("live", running ? "Live" : "Connected; the run is over");
}

function link(state, text) {
  at("link").dataset.link = state;
  set(at("link"), text);
}

function snapshot(now) {
  at("unread").hidden = true;
  running = now.alive;
  draw(now);
  alive();
}

function unread(why) {
  at("unread").hidden = false;
  set(at("unread"), `The run cannot be read: ${why}. The page shows the last state that was read.`);
}

function record(found) {
  addRecord(found);
  picture();
}

async function earlier() {
  try {
    const answer = await fetch("history.json");
    if (answer.ok) history(await answer.json());
  } catch {
    // the connection is lost, which the stream shows
  }
  setTimeout(earlier, HISTORY);
}

function picture() {
  if (due) return;
  due = setTimeout(async () => {
    due = 0;
    drawnAt = Date.now();
    const box = at("timeline");
    wide = box.clientWidth;
    const drawn = await fetched(`timeline.svg?inline&width=${Math.max(320, wide)}`);
    if (drawn) box.replaceChildren(document.importNode(drawn, true));
  }, Math.max(0, drawnAt + PICTURE[0] - Date.now()));
}

// Fetched as a document that the browser parses, so that no text is turned into markup here.
function fetched(path) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("GET", path);
    request.responseType = "document";
    request.overrideMimeType("image/svg+xml");
    request.onload = () => {
      const root = request.status === 200 ? request.responseXML?.documentElement : null;
      resolve(root?.localName === "svg" ? root : null);
    };
    request.onerror = () => resolve(null);
    request.send();
  });
}

at("all").addEventListener("click", () => { all = !all; connect(); });
order.changed = () => { if (!all && !at("all").hidden) { all = true; connect(); } }; // an order is one of all ranks
addEventListener("resize", () => { if (at("timeline").clientWidth !== wide) picture(); });
setInterval(() => {
  if (Date.now() - lastEvent > SILENT) connect();
  if (Date.now() - drawnAt > PICTURE[1]) picture();
}, 1_000);
connect();
earlier();
