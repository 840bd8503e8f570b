// The table of the ranks, in the order that the reader has chosen.

import { at, cells, exact, listed, rows, seconds, set, size } from "./cells.js";

const KEYS = {
  rank: (rank) => rank.rank,
  state: (rank) => rank.state,
  step: (rank) => rank.step ?? -1,
  silent: (rank) => rank.age ?? rank.moved ?? -1,
  limit: (rank) => (rank.age !== null && rank.limit ? rank.age / rank.limit : -1),
  pace: (rank) => rank.step_time ?? -1,
  cpu: (rank) => rank.cpu ?? -1,
  memory: (rank) => rank.memory ?? -1,
};
const LARGEST_FIRST = new Set(["silent", "limit", "pace", "cpu", "memory"]);

let key = null; // null: as they come, the one nearest to its limit first
let reversed = false;
let last = null; // the snapshot that is shown
export const order = { changed: () => {} }; // called when the reader has chosen an order

export function ranks(now) {
  last = now;
  const count = Object.values(now.states).reduce((a, b) => a + b, 0);
  at("ranks").hidden = !count;
  const part = now.ranks.length < count ? `; the ${now.ranks.length} nearest to their limits are shown` : "";
  set(at("ranks-text"), `${count} in total: ${listed(now.states)}${part}.`);
  const all = at("all");
  all.hidden = count <= 64;
  set(all, now.ranks.length < count ? `Show all ${count}` : "Show fewer");
  rows(at("rank-rows"), sorted(now.ranks), "tr", (row, rank) => {
    const near = rank.age !== null && rank.limit ? rank.age / rank.limit : 0;
    const device = rank.device ? `, device ${rank.device}` : "";
    const named = rank.straggler !== null ? `straggler on ${last.node}${device}: ${rank.straggler}` : rank.exit !== null ? `${rank.state}, ${rank.exit}` : rank.state;
    const state = near >= 1 ? `${rank.state}, over its limit` : near > 0.75 ? `${rank.state}, near its limit` : named;
    const look = near > 0.75 || rank.state === "gone" || rank.state === "exited" ? "bad" : rank.straggler !== null || rank.state === "stalled" ? "warn" : "";
    cells(row, [
      ["number", rank.rank < -1 ? "no RANK" : rank.rank < 0 ? "touch" : `${rank.rank}`, "th"], [look, state],
      ["number", rank.step === null ? "" : `${rank.step}`], ["number", seconds(rank.age ?? rank.moved)],
      ["number", seconds(rank.limit)], ["number", exact(rank.step_time)], ["", rank.section ?? ""], ["number", rank.pid ? `${rank.pid}` : ""],
      ["number", rank.cpu === null ? "" : `${Math.round(rank.cpu)} %`], ["number", size(rank.memory)],
    ]);
  });
}

function sorted(found) {
  if (key === null) return found;
  const by = KEYS[key];
  const sign = reversed ? -1 : 1;
  return [...found].sort((a, b) => {
    const [one, other] = [by(a), by(b)];
    return one === other ? a.rank - b.rank : one < other ? -sign : sign;
  });
}

for (const button of document.querySelectorAll("#ranks [data-key]")) {
  button.addEventListener("click", () => {
    const chosen = button.dataset.key;
    [key, reversed] = chosen === key ? [key, !reversed] : [chosen, LARGEST_FIRST.has(chosen)];
    for (const head of document.querySelectorAll("#ranks thead th")) {
      const own = head.querySelector("[data-key]")?.dataset.key === key;
      if (own) head.setAttribute("aria-sort", reversed ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
    }
    order.changed();
    if (last) ranks(last);
  });
}
