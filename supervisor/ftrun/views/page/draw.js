// Puts the snapshot of a run into the page.  Foreign text is inserted as text only, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const PHASES = {
  launching: ["▸", "quiet"],
  starting: ["▸", "quiet"],
  running: ["●", "good"],
  suspect: ["▲", "warn"],
  stopping: ["■", "warn"],
  healing: ["✚", "warn"],
  waiting: ["◷", "warn"],
  "cut off": ["✖", "bad"],
};

export const at = (id) => document.getElementById(id);

// As `printable` of core/text/sentences.py: control characters, and those that change the text direction, are escaped.
const printable = (text) => text.replace(/(?! )[\p{C}\p{Z}]/gu, (sign) => {
  const code = sign.codePointAt(0).toString(16);
  const short = { "\t": "\\t", "\n": "\\n", "\r": "\\r" }[sign];
  return short ?? (code.length < 3 ? `\\x${code.padStart(2, "0")}` : code.length < 5 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`);
});

export function set(element, text) {
  const shown = printable(text);
  if (element.textContent !== shown) element.textContent = shown;
}

function show(element, text) {
  element.hidden = !text;
  if (text) set(element, text);
}

// As `seconds` of core/text/durations.py.
export function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 10) return `${value.toFixed(1)}s`.replace(".0s", "s");
  const rounded = Math.round(value);
  if (rounded < 120) return `${rounded}s`;
  const minutes = Math.floor(rounded / 60);
  if (minutes < 120) return rounded % 60 ? `${minutes}m ${rounded % 60}s` : `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  return minutes % 60 ? `${hours}h ${minutes % 60}m` : `${hours}h`;
}

const exact = (value) => (value === null ? "" : value < 10 ? `${Number(value.toPrecision(3))}s` : seconds(value));
const who = (rank) =>
  rank.rank < -1 ? `process ${rank.pid} (no RANK)` : rank.rank < 0 ? "the touch file" : `rank ${rank.rank}`;
const gibibytes = (value) => (value === null ? "?" : `${Math.round(value / 2 ** 29) / 2}`);
const listed = (counts) => Object.entries(counts).filter(([, n]) => n).map(([name, n]) => `${name} ${n}`).join(", ");

export function draw(now) {
  set(at("part"), now.part ? `· ${now.part}` : "");
  set(at("command"), now.command.join(" "));
  set(at("where"), now.run_dir);
  set(at("version"), now.version ? `ftrun ${now.version}` : "");
  phase(now);
  show(at("paused"), now.paused === null || !now.alive ? "" : now.headline);
  deadline(now);
  figures(now);
  pace(now.paces);
  ranks(now);
  devices(now.devices);
  limits(now.limits);
  incident(now.trouble);
  rows(at("problems"), now.problems, "li", (item, text) => set(item, text));
  at("problems").hidden = !now.problems.length;
}

function phase(now) {
  const ended = now.phase === "done";
  const good = now.exit_code === 0;
  const [sign, look] = ended ? [good ? "✔" : "✖", good ? "good" : "bad"] : PHASES[now.phase] ?? ["●", "quiet"];
  set(at("phase"), `${sign} ${now.state[0].toUpperCase()}${now.state.slice(1)}`);
  at("phase").className = `phase ${look}`;
  const outer = now.outer ? ` The outer scheduler should: ${now.outer}.` : "";
  show(at("verdict"), ended ? `${now.why ?? ""}${now.meaning ? ` (${now.meaning}).` : ""}${outer}` : "");
  set(document.querySelector("title"), `${ended ? `ended ${now.exit_code}` : now.phase}${now.step === null ? "" : ` · step ${now.step}`} – ftrun`);
}

function deadline(now) {
  show(at("next"), now.next && now.phase !== "done" ? `Next: ${now.next}` : "");
  const rank = now.alive ? now.stalest : null;
  const limited = rank !== null && rank.age !== null && rank.limit !== null;
  at("deadline").hidden = !limited;
  if (!limited) return;
  const used = Math.min(1, Math.max(0, rank.age / rank.limit));
  set(at("bar-label"), `Nearest to its timeout: ${who(rank)}`);
  at("bar").value = used;
  at("bar").toggleAttribute("data-near", used > 0.75);
  set(at("bar-text"), `silent for ${seconds(rank.age)} of ${seconds(rank.limit)} (${Math.round(used * 100)} %)`);
}

function budget(cause, count, left) {
  if (left === null || left === undefined) return `${cause}: ${count}${left === null ? ", without limit" : ""}`;
  return count || left ? `${cause}: ${count}, ${left} left` : `${cause}: none permitted, ends the run`;
}

function figures(now) {
  const lost = Object.entries(now.lost).filter(([, value]) => value >= 0.05);
  const found = [
    ["Attempt", [`${now.attempt} (${["first", ""].includes(now.reason) ? "the first" : `after ${now.reason}`})`, now.up === null ? "" : `for ${seconds(now.up)}`]],
    ["Step", now.step === null ? [] : [`${now.step}`, now.step_time === null ? "" : `${exact(now.step_time)} per step`,
      now.best_step !== null && now.best_step > now.step ? `${now.best_step} was reached before` : ""]],
    ["Last checkpoint", now.checkpoint === null && now.checkpoint_step === null ? [] : [
      now.checkpoint_step === null ? "unnumbered" : `step ${now.checkpoint_step}`,
      now.checkpoint_age === null ? "" : `${now.checkpoint_time ? `${stamp(now.checkpoint_time)} UTC, ` : ""}${seconds(now.checkpoint_age)} ago`, now.checkpoint ?? ""]],
    ["Goodput", now.goodput === null ? [] : [`${(now.goodput * 100).toFixed(now.goodput > 0.995 && now.goodput < 1 ? 1 : 0)} %`,
      `of ${seconds(now.wall)}`]],
    ["Lost time", lost.length ? [seconds(lost.reduce((sum, [, value]) => sum + value, 0)),
      ...lost.map(([why, value]) => `${seconds(value)} ${why}`)] : []],
    ["Restarts without progress", now.phase === "done" ? [] : Object.keys(now.counts).map((cause) => budget(cause, now.counts[cause], now.left[cause]))],
    ["Restarts so far", listed(now.restarts) ? [listed(now.restarts)] : []],
    ["Slowest", now.slowest && now.ranks.length > 1 ? [`${who(now.slowest)}, step ${now.slowest.step}`] : []],
  ];
  const shown = found.map(([name, texts]) => [name, texts.filter(Boolean)]).filter(([, texts]) => texts.length);
  rows(at("figures"), shown, "div", (group, [name, texts]) => {
    rows(group, [name, ...texts], (index) => (index ? "dd" : "dt"), set);
  });
}

function pace(paces) {
  at("pace").hidden = paces.length < 2;
  if (paces.length < 2) return;
  const times = paces.map(([, value]) => value);
  const [least, most, last] = [Math.min(...times), Math.max(...times), times.at(-1)];
  const [from, until] = [paces[0][0], paces.at(-1)[0]];
  const high = most * 1.1 || 1;
  const points = paces.map(([when, value]) => `${(600 * (when - from)) / (until - from || 1)},${80 - (76 * value) / high}`);
  const text = `${exact(last)} per step now; between ${exact(least)} and ${exact(most)} over the last ${seconds(until - from)}`;
  set(at("pace-text"), text);
  let svg = at("spark").firstElementChild;
  if (!svg) {
    svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of [["viewBox", "0 0 600 80"], ["preserveAspectRatio", "none"], ["role", "img"]]) svg.setAttribute(name, value);
    const base = document.createElementNS(SVG, "line");
    for (const [name, value] of [["x1", 0], ["x2", 600], ["y1", 79], ["y2", 79]]) base.setAttribute(name, value);
    svg.append(base, document.createElementNS(SVG, "polyline"));
    at("spark").append(svg);
  }
  svg.setAttribute("aria-label", `Step time: ${text}`);
  svg.lastElementChild.setAttribute("points", points.join(" "));
}

function ranks(now) {
  const count = Object.values(now.states).reduce((a, b) => a + b, 0);
  at("ranks").hidden = !count;
  const part = now.ranks.length < count ? `; the ${now.ranks.length} nearest to their limits are shown` : "";
  set(at("ranks-text"), `${count} in total: ${listed(now.states)}${part}.`);
  const all = at("all");
  all.hidden = count <= 64;
  set(all, now.ranks.length < count ? `Show all ${count}` : "Show fewer");
  rows(at("rank-rows"), now.ranks, "tr", (row, rank) => {
    const near = rank.age !== null && rank.limit ? rank.age / rank.limit : 0;
    const named = rank.straggler !== null ? `straggler: ${rank.straggler}` : rank.exit !== null ? `${rank.state}, ${rank.exit}` : rank.state;
    const state = near >= 1 ? `${rank.state}, over its limit` : near > 0.75 ? `${rank.state}, near its limit` : named;
    cells(row, [
      ["number", rank.rank < -1 ? "no RANK" : rank.rank < 0 ? "touch" : `${rank.rank}`, "th"], [near > 0.75 || rank.state === "gone" || rank.state === "exited" ? "bad" : "", state],
      ["number", rank.step === null ? "" : `${rank.step}`], ["number", seconds(rank.age ?? rank.moved)],
      ["number", seconds(rank.limit)], ["number", exact(rank.step_time)], ["", rank.section ?? ""], ["number", rank.pid ? `${rank.pid}` : ""],
    ]);
  });
}

function devices(found) {
  at("devices").hidden = !found.length;
  rows(at("device-rows"), found, "tr", (row, one) => cells(row, [
    ["", one.id, "th"], ["", one.name], ["number", one.util === null ? "" : `${Math.round(one.util)} %`],
    ["number", one.memory_used === null ? "" : `${gibibytes(one.memory_used)} of ${gibibytes(one.memory_total)} GiB`],
    ["number", one.power === null ? "" : `${Math.round(one.power)} W`], ["number", `${seconds(one.age)} ago`],
  ]));
}

function limits(found) {
  at("limits").hidden = !found.length;
  rows(at("limit-rows"), found, "tr", (row, one) => cells(row, [
    ["", one.name, "th"], ["number", one.seconds === null ? "off" : seconds(one.seconds)], ["text", one.source],
  ]));
}

function incident(found) {
  at("incident").hidden = !found;
  if (!found) return;
  set(at("incident-text"), `${found.cause} in attempt ${found.attempt}, ${stamp(found.time)} UTC: ${found.why}`);
  at("incident-report").hidden = !found.report;
  const link = at("incident-link");
  if (link.getAttribute("href") !== `report/${found.attempt}`) link.setAttribute("href", `report/${found.attempt}`);
  set(link, `The report of attempt ${found.attempt}: stacks and evidence`);
}

export const stamp = (time) => `${time ?? ""}`.replace("T", " ").replace(/(\.\d+)?Z$/, "");

const KNOWN = new Set(["schema", "time", "mono", "event", "attempt"]);

export function recordRow(record) {
  const row = document.createElement("tr");
  row.role = "row";
  const fields = Object.entries(record).filter(([name, value]) => !KNOWN.has(name) && value !== null);
  const text = fields.map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join("; ");
  cells(row, [["when", stamp(record.time)], ["number", `${record.attempt ?? ""}`], ["", `${record.event}`, "th"], ["text", text]]);
  for (const cell of row.children) cell.role = cell.localName === "th" ? "rowheader" : "cell"; // a narrow page does not lay it out as a table
  return row;
}

function cells(row, values) {
  rows(row, values, (index) => values[index][2] ?? "td", (cell, [look, text, head]) => {
    if (cell.className !== look) cell.className = look;
    if (head && cell.scope !== "row") cell.scope = "row";
    set(cell, text);
  });
}

// As many children as there are values.  Existing ones are reused, so that focus, selection and scrolling stay.
function rows(parent, values, tag, fill) {
  while (parent.children.length > values.length) parent.lastElementChild.remove();
  values.forEach((value, index) => {
    const name = typeof tag === "string" ? tag : tag(index);
    let child = parent.children[index];
    if (!child || child.localName !== name) {
      const made = document.createElement(name);
      if (child) child.replaceWith(made); else parent.append(made);
      child = made;
    }
    fill(child, value);
  });
}
