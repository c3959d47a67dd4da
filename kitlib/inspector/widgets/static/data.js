// The grid as the browser holds it: one per data model, shared by every view of it.
// The other end is wire.py (the buffers of a change) and desk.py (frame, numbers, resync).
import { ShortNames } from "./names.js";

const FLASH_MS = 1500; // how long a written cell is ringed
const grids = new WeakMap(); // data model -> Grid

export function gridOf(model) {
  if (!grids.has(model)) grids.set(model, new Grid(model));
  return grids.get(model);
}

const bytes = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
const numbers = (view) => new Uint32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
const lines = (view) => (view.byteLength ? new TextDecoder().decode(view).split("\n") : []);

export class Grid {
  constructor(model) {
    this.model = model;
    this.listeners = new Set(); // called with (what): "whole", "delta", "panel"
    this.panels = new Map(); // name -> HTML
    this.written = new Map(); // cell -> ms of its last write, kept for FLASH_MS
    this.isLost = false;
    this.takeWhole();
    model.on("change:frame", () => this.takeWhole());
    model.on("msg:custom", (content, buffers) => this.take(content, buffers));
  }

  tell(what, detail) {
    for (const listener of this.listeners) listener(what, detail);
  }

  takeWhole() {
    const { model } = this;
    this.frame = model.get("frame");
    this.palette = model.get("palette");
    this.names = lines(model.get("names"));
    this.short = new ShortNames(this.names, this.palette.short_names);
    const marks = bytes(model.get("marks"));
    this.kinds = marks.slice(0, this.names.length);
    this.statuses = marks.slice(this.names.length);
    this.cells = bytes(model.get("cells")).slice();
    this.written.clear();
    this.isLost = false;
    this.tell("whole");
  }

  take(content, buffers) {
    if (content.kind === "panel") {
      this.panels.set(content.name, content.html);
      this.tell("panel", content.name);
    } else if (content.kind === "delta" && content.frame.seq > this.frame.seq) {
      if (content.frame.seq !== this.frame.seq + 1) return this.lose();
      if (buffers.length) this.apply(content.frame, buffers);
      this.frame = content.frame;
      this.tell("delta");
    }
  }

  // A number is missing: ask for everything, once.
  lose() {
    if (this.isLost) return;
    this.isLost = true;
    this.tell("lost");
  }

  apply(frame, buffers) {
    const width = frame.num_fields;
    const [removed, cells, rows] = [0, 1, 3].map((i) => numbers(buffers[i]));
    const [values, marks, addedMarks, addedCells] = [2, 4, 6, 7].map((i) => bytes(buffers[i]));
    if (removed.length) this.remove(removed, width);
    const now = performance.now();
    for (let i = 0; i < cells.length; i++) {
      this.cells[cells[i]] = values[i];
      this.written.set(cells[i], now);
    }
    for (let i = 0; i < rows.length; i++) {
      this.kinds[rows[i]] = marks[i];
      this.statuses[rows[i]] = marks[rows.length + i];
    }
    const added = lines(buffers[5]);
    if (!added.length) return;
    const numOld = this.names.length;
    for (const name of added) this.names.push(name);
    this.short.add(added, this.names);
    this.kinds = joined(this.kinds, addedMarks.subarray(0, added.length));
    this.statuses = joined(this.statuses, addedMarks.subarray(added.length));
    this.cells = joined(this.cells, addedCells);
    for (let i = 0; i < addedCells.length; i++) if (addedCells[i]) this.written.set(numOld * width + i, now);
  }

  remove(removed, width) {
    const gone = new Uint8Array(this.names.length);
    for (const row of removed) gone[row] = 1;
    let to = 0;
    for (let row = 0; row < gone.length; row++) {
      if (gone[row]) continue;
      if (to !== row) {
        this.names[to] = this.names[row];
        this.kinds[to] = this.kinds[row];
        this.statuses[to] = this.statuses[row];
        this.cells.copyWithin(to * width, row * width, (row + 1) * width);
      }
      to++;
    }
    this.names.length = to;
    this.kinds = this.kinds.slice(0, to);
    this.statuses = this.statuses.slice(0, to);
    this.cells = this.cells.slice(0, to * width);
    this.written.clear(); // positions have moved
  }

  // Ms until the next ring goes out, 0 if none is lit; forgets those that are out.
  dimRings() {
    const now = performance.now();
    let next = 0;
    for (const [cell, at] of this.written) {
      if (now - at >= FLASH_MS) this.written.delete(cell);
      else next = next || FLASH_MS - (now - at); // in the order of writing: the first is the oldest
    }
    return next;
  }

  // Columns under a stage: [{name, group, hover, at, states: [present, absent, absent on padding], isRead}].
  columns(stage) {
    const { columns, looks } = this.palette;
    return looks[stage].map(([i, ...look]) => ({ ...columns[i], states: look.slice(0, 3), isRead: look[3] === 1 }));
  }

  isThere(row, column) {
    return column.at >= 0 && this.cells[row * this.frame.num_fields + column.at] === 1;
  }

  // The state of a cell as a position in palette.states; -1 for nothing to say (an absent field of a marker or stray).
  state(row, column) {
    if (this.isThere(row, column)) return column.states[0];
    const kind = this.kinds[row];
    return kind > 1 ? -1 : column.states[1 + kind];
  }
}

function joined(a, b) {
  const both = new Uint8Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}
