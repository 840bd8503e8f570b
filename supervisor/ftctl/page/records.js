// The table of the records, the newest first.  Progress that follows progress is one row, so that it buries nothing.

import { at, cells, stamp } from "./cells.js";

const RECORDS = 256;
const KNOWN = new Set(["schema", "time", "mono", "event", "attempt"]);

export function addRecord(record) {
  const table = at("record-rows");
  const newest = table.firstElementChild;
  const kind = record.event === "progress" ? `${record.attempt} ${record.by}` : "";
  const folded = kind && newest?.dataset.kind === kind ? Number(newest.dataset.count) + 1 : 1;
  const row = folded > 1 ? newest : document.createElement("tr");
  if (row !== newest) table.prepend(row);
  row.role = "row";
  row.dataset.kind = kind;
  row.dataset.count = folded;
  const fields = Object.entries(record).filter(([name, value]) => !KNOWN.has(name) && value !== null);
  const text = fields.map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join("; ");
  const name = folded > 1 ? `${record.event} ×${folded}` : `${record.event}`;
  cells(row, [["when", stamp(record.time)], ["number", `${record.attempt ?? ""}`], ["", name, "th"], ["text", text]]);
  for (const cell of row.children) cell.role = cell.localName === "th" ? "rowheader" : "cell"; // a narrow page does not lay it out as a table
  while (table.children.length > RECORDS) table.lastElementChild.remove();
}
