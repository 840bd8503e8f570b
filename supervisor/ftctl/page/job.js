// The whole job: the members of the group, and the history over all schedules.

import { at, card, moment, rows, seconds, set, show } from "./cells.js";

const BAD = new Set(["cut off", "no contact"]);
const WARN = new Set(["suspect", "paused", "stopping", "healing", "waiting"]);
const heads = (id) => [...document.querySelectorAll(`#${id} thead th`)].map((head) => head.textContent);

export function group(now) {
  const found = now.members;
  at("group").hidden = !found;
  if (!found) return;
  const labels = heads("group");
  set(at("group-text"), `${found.headline[0].toUpperCase()}${found.headline.slice(1)}.`);
  const hidden = found.size - found.members.length - found.never_seen.length;
  show(at("group-rest"), hidden > 0 ? `${hidden} more members are not shown; \`ftctl status --all\` shows all.` : "");
  const unseen = found.never_seen.map((rank) => ({ rank, node: "", state: "never seen", slow: [] }));
  rows(at("member-rows"), [...found.members, ...unseen], "tr", (row, one) => {
    const own = one.rank === found.seen_from;
    const beat = one.beat === null || one.beat === undefined ? "" : `${seconds(one.beat + (one.age ?? 0))} ago`;
    const slow = one.slow.map((rank) => rank.text).join("; ");
    const look = BAD.has(one.state) || one.state === "never seen" ? "bad" : WARN.has(one.state) || slow ? "warn" : "";
    const report = one.report ? own ? `report/${one.report}` : `member/${one.rank}/report/${one.report}` : null;
    card(row, [
      ["number", `${one.rank}`, "th"], ["", `${one.node}${own ? " (this one)" : ""}`], [look, one.state],
      ["number", `${one.attempt ?? ""}`], ["number", `${one.step ?? ""}`], ["number", beat],
      ["text", [slow, one.trouble, one.old].filter(Boolean).join("; ") || (one.attempt ? "none" : "")],
      ["", report ? `attempt ${one.report}` : "", undefined, report],
    ], labels);
  });
}

export function history(found) {
  const shown = [...found.rows].reverse();
  at("history").hidden = !shown.length;
  const labels = heads("history");
  const members = new Set(shown.map((one) => one.member)).size > 1;
  set(at("history-source"), found.source);
  rows(at("history-rows"), shown, "tr", (row, one) => {
    const where = one.place ? ` at ${one.place}` : "";
    const what = one.cause ? `${one.cause}${where}` : one.ending ? "" : one.open ? "running when last seen" : one.stopped;
    const text = [what, one.cause && one.why !== one.place ? one.why : "", one.ending].filter(Boolean).join("; ");
    card(row, [
      ["number", one.schedule ? `${one.schedule}` : "", "th"], ["", `${members ? `${one.member} ` : ""}${one.node ? `on ${one.node}` : ""}`],
      ["number", `${one.number}`], ["when", moment(one.began)], ["number", one.open ? "" : seconds(one.seconds)], ["number", one.steps],
      [`text${one.cause || one.good === false ? " warn" : one.good ? " good" : ""}`, text], ["cost", one.cost],
      ["", one.link ? "report" : "", undefined, one.link],
    ], labels);
  });
}
