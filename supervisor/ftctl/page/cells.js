// Texts and tables.  Foreign text is inserted as text only, never as markup.

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

export function show(element, text) {
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

export const size = (bytes) =>
  bytes === null ? "" : bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`;
export const exact = (value) => (value === null ? "" : value < 10 ? `${Number(value.toPrecision(3))}s` : seconds(value));
export const who = (rank) =>
  rank.rank < -1 ? `process ${rank.pid} (no RANK)` : rank.rank < 0 ? "the touch file" : `rank ${rank.rank}`;
export const listed = (counts) => Object.entries(counts).filter(([, n]) => n).map(([name, n]) => `${name} ${n}`).join(", ");
export const stamp = (time) => `${time ?? ""}`.replace("T", " ").replace(/(\.\d+)?Z$/, "");
export const moment = (epoch) => (epoch === null ? "" : stamp(new Date(epoch * 1000).toISOString()));

// A row of cells: [class, text, "th" for its head, address of a link].
export function cells(row, values) {
  rows(row, values, (index) => values[index][2] ?? "td", (cell, [look, text, head, address]) => {
    if (cell.className !== look) cell.className = look;
    if (head && cell.scope !== "row") cell.scope = "row";
    if (!address) return set(cell, text);
    let link = cell.firstElementChild;
    if (!link) {
      link = document.createElement("a");
      cell.replaceChildren(link);
    }
    if (link.getAttribute("href") !== address) link.setAttribute("href", address);
    set(link, text);
  });
}

// The same in a table that a narrow page lays out as one block for each row: the browser then no longer takes it for a
// table, and the label of each cell stands before it.
export function card(row, values, labels) {
  cells(row, values);
  if (row.role !== "row") row.role = "row";
  [...row.children].forEach((cell, index) => {
    const role = cell.localName === "th" ? "rowheader" : "cell";
    if (cell.role !== role) cell.role = role;
    if (cell.dataset.label !== labels[index]) cell.dataset.label = labels[index];
  });
}

// As many children as there are values.  Existing ones are reused, so that focus, selection and scrolling stay.
export function rows(parent, values, tag, fill) {
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
