// Puts the snapshot of a run into the page.  Foreign text is inserted as text only, never as markup.

import { at, cells, exact, listed, rows, seconds, set, show, stamp, who } from "./cells.js";
import { group } from "./job.js";
import { ranks } from "./ranks.js";

const SVG = "http://www.w3.org/2000/svg";
const PHASES = {
  launching: ["▸", "quiet"],
  starting: ["▸", "quiet"],
  running: ["●", "good"],
  suspect: ["▲", "warn"],
  stopping: ["■", "warn"],
  healing: ["✚", "warn"],
  waiting: ["◷", "warn"],
  spare: ["○", "good"],
  finished: ["✔", "good"],
  "cut off": ["✖", "bad"],
};

const gibibytes = (value) => (value === null ? "?" : `${Math.round(value / 2 ** 29) / 2}`);

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
  group(now);
  devices(now.devices);
  limits(now.limits);
  incident(now.trouble, now.members, now.phase === "done" ? now.why : null);
  rows(at("problems"), now.problems, "li", (item, text) => set(item, text));
  at("problems").hidden = !now.problems.length;
}

function phase(now) {
  const ended = now.phase === "done";
  const good = now.exit_code === 0;
  const elsewhere = now.alive && (now.job || now.suspended !== null || now.recovery);
  const [sign, look] = elsewhere ? [now.job?.lost ? "✖" : "▲", now.job?.lost ? "bad" : "warn"] : ended ? [good ? "✔" : "✖", good ? "good" : "bad"] : PHASES[now.phase] ?? ["●", "quiet"];
  set(at("phase"), `${sign} ${now.state[0].toUpperCase()}${now.state.slice(1)}`);
  at("phase").className = `phase ${look}`;
  const outer = now.outer ? ` The outer scheduler should: ${now.outer}.` : "";
  show(at("verdict"), ended ? `${now.why ?? ""}${now.meaning ? ` (${now.meaning}).` : ""}${outer}` : "");
  set(document.querySelector("title"), `${ended ? `ended ${now.exit_code}` : now.phase}${now.step === null ? "" : ` · step ${now.step}`} – ftrun`);
}

function deadline(now) {
  const stalled = now.stalled && now.alive
    ? `Stalled: rank ${now.stalled.rank} for ${seconds(now.stalled.age)}: ${now.wait ?? "it is not known what it waits for"}. ` : "";
  show(at("do"), now.do ? `Do: ${now.do}` : "");
  show(at("next"), now.next && now.phase !== "done" ? `${stalled}Next: ${now.next}` : "");
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
    ["Attempt", [`${now.attempt} (${["first", ""].includes(now.reason) ? "the first" : `after ${now.origin || now.reason}`})`, now.up === null ? "" : `for ${seconds(now.up)}`]],
    ["Step", now.step === null ? [] : [`${now.step}`, now.standstill ? now.standstill : now.step_time === null ? "" : `${exact(now.step_time)} per step`,
      now.best_step !== null && now.best_step > now.step ? `${now.best_step} was reached before` : ""]],
    ["Last checkpoint", now.checkpoint === null && now.checkpoint_step === null ? [] : [
      now.checkpoint_step === null ? "unnumbered" : `step ${now.checkpoint_step}`,
      now.checkpoint_age === null ? "" : `${now.checkpoint_time ? `${stamp(now.checkpoint_time)} UTC, ` : ""}${seconds(now.checkpoint_age)} ago`, now.checkpoint ?? ""]],
    ["Goodput", now.goodput === null ? (now.wall ? ["-", "no step and no checkpoint has been seen"] : []) : [`${(now.goodput * 100).toFixed(now.goodput > 0.995 && now.goodput < 1 ? 1 : 0)} %`,
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
    ["", one.name, "th"], ["number", one.seconds !== null ? seconds(one.seconds) : one.source.endsWith("what is proved to hang") ? "auto" : "off"], ["text", one.source],
  ]));
}

function incident(found, group, said) {
  at("incident").hidden = !found;
  if (!found) return;
  const again = found.again ? `${found.again}, ` : "";
  const when = found.attempt ? `in attempt ${found.attempt}` : "before this start";
  const why = found.why === said ? "" : `: ${found.why}`;
  set(at("incident-text"), `${found.cause} ${when}, ${again}${stamp(found.time)} UTC${why}`);
  const other = found.member === null || found.cause === "loss" ? null : group?.members.find((one) => one.rank === found.member);
  const place = other?.report ? `member/${found.member}/report/${other.report}` : `report/${found.attempt}`;
  at("incident-report").hidden = found.member === null ? !found.report : !other?.report;
  const link = at("incident-link");
  if (link.getAttribute("href") !== place) link.setAttribute("href", place);
  set(link, other ? `The report of member ${found.member} (${found.node})` : `The report of attempt ${found.attempt}: stacks and evidence`);
}
