// The filter box: words that all have to hold, judged in the browser over all rows.
//   f3a1      the key contains it; * and ? are patterns for the whole key
//   status:running   field:rm*   is:missing   is:padding   is:marker   is:stray   is:row

import { uidOf } from "./names.js";

const KINDS = ["row", "padding", "marker", "stray"];

export const FILTER_HINT = "filter: key, status:…, field:…, is:missing";

function pattern(text) {
  const escaped = text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*").replace(/\?/g, ".");
  return new RegExp(`^${escaped}$`, "i");
}

export function parseFilter(text) {
  const filter = { texts: [], patterns: [], statuses: [], fields: [], kinds: [], missing: false, isEmpty: true };
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    filter.isEmpty = false;
    const [, name, value] = /^(status|field|is):(.*)$/i.exec(word) ?? [];
    if (name === undefined) (/[*?]/.test(word) ? filter.patterns : filter.texts).push(/[*?]/.test(word) ? pattern(word) : word);
    else if (value === "") continue; // still being typed
    else if (name.toLowerCase() === "status") filter.statuses.push(value.toLowerCase());
    else if (name.toLowerCase() === "field") filter.fields.push(pattern(value));
    else if (value === "missing") filter.missing = true;
    else if (KINDS.includes(value)) filter.kinds.push(KINDS.indexOf(value));
  }
  return filter;
}

export function shownColumns(columns, filter) {
  return filter.fields.length ? columns.filter((c) => filter.fields.some((f) => f.test(c.name))) : columns;
}

// The same rows, those of a uid together: uids in the order of their first row, rows of a uid in the order of the queue.
export function grouped(grid, rows) {
  const groups = new Map();
  const total = rows ? rows.length : grid.names.length;
  for (let i = 0; i < total; i++) {
    const row = rows ? rows[i] : i;
    const uid = uidOf(grid.names[row]);
    const group = groups.get(uid);
    if (group) group.push(row);
    else groups.set(uid, [row]);
  }
  const ordered = new Uint32Array(total);
  let at = 0;
  for (const group of groups.values()) for (const row of group) ordered[at++] = row;
  return ordered;
}

// Rows that pass, as positions; null for all of them.
export function shownRows(grid, filter, columns) {
  const { texts, patterns, statuses, kinds, missing } = filter;
  if (!(texts.length || patterns.length || statuses.length || kinds.length || missing)) return null;
  const states = grid.palette.states;
  const needed = columns.filter((c) => states[c.states[1]].name === "MISSING");
  const wanted = grid.frame.words.map((word) => statuses.some((s) => word.toLowerCase().startsWith(s)));
  const rows = [];
  for (let row = 0; row < grid.names.length; row++) {
    const name = grid.names[row];
    if (
      texts.every((t) => name.includes(t)) &&
      patterns.every((p) => p.test(name)) &&
      (!statuses.length || wanted[grid.statuses[row]]) &&
      (!kinds.length || kinds.includes(grid.kinds[row])) &&
      (!missing || (grid.kinds[row] < 2 && needed.some((c) => !grid.isThere(row, c))))
    )
      rows.push(row);
  }
  return Uint32Array.from(rows);
}
