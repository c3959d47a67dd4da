// One view: it puts the pieces together, keeps what is its own (filter, cursor, scroll) and talks to the kernel.
// The data model is shared by all views of a widget; requests and answers go over the control model.
import { gridOf } from "./data.js";
import { grouped, parseFilter, shownColumns, shownRows } from "./filter.js";
import { ROW, brushes, cellAt, draw, measure } from "./draw.js";
import { Toolbar, node } from "./toolbar.js";
import { PanelBar, legend } from "./panels.js";
import { moved } from "./keyboard.js";

class View {
  constructor(control, grid) {
    this.control = control;
    this.grid = grid;
    this.id = crypto.randomUUID?.() ?? String(Math.random());
    this.filter = parseFilter("");
    this.stage = grid.frame.stage;
    this.stageOfKernel = grid.frame.stage;
    this.cursor = null;
    this.isGrouped = false;
    this.build(control.get("height"));
    this.refresh();
  }

  ask(kind, more = {}) {
    this.control.send({ kind, view: this.id, ...more });
  }

  build(height) {
    this.toolbar = new Toolbar({
      partition: (id) => this.ask("partition", { id }),
      stage: (name) => this.chooseStage(name),
      filter: (text) => this.chooseFilter(text),
      group: (on) => this.chooseOrder(on),
      follow: (on) => this.ask("follow", { on }),
      moment: (at) => this.ask("moment", { at }),
    });
    this.panels = new PanelBar({ panel: (name) => this.ask("panel", { name }), values: () => this.askCell(true) });
    this.canvas = node("canvas", { class: "kitlib-canvas", tabindex: 0, role: "grid", "aria-describedby": `${this.id}-say` });
    this.area = node("div", { class: "kitlib-area" }, this.canvas);
    this.scroller = node("div", { class: "kitlib-scroller" }, this.area);
    this.height = height;
    this.spoken = node("div", { class: "kitlib-spoken", id: `${this.id}-say`, "aria-live": "polite" });
    this.legend = node("div", { class: "kitlib-legend" });
    this.probe = node("i", { hidden: "" });
    this.el = node("div", { class: "kitlib-inspector", "data-lm-suppress-shortcuts": "true" });
    this.el.append(this.toolbar.el, this.scroller, this.legend, this.panels.el, this.spoken, this.probe);
    this.scroller.addEventListener("scroll", () => this.paintSoon());
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.canvas.addEventListener("mousemove", (event) => this.hovered(event));
    for (const name of ["focus", "blur"]) this.canvas.addEventListener(name, () => this.paintSoon());
    this.el.addEventListener("keydown", (event) => this.pressed(event));
  }

  // -- what is shown -------------------------------------------------------------------------------------------------

  take(what, detail) {
    if (what === "lost") return this.ask("resync");
    if (what === "panel") return this.panels.showHtml(detail, this.grid.panels.get(detail));
    if (this.grid.frame.stage !== this.stageOfKernel) this.stage = this.stageOfKernel = this.grid.frame.stage;
    this.refresh();
  }

  // Everything that follows from the grid, the stage and the filter.
  refresh() {
    const { grid } = this;
    const { frame, palette } = grid;
    const basis = [palette, this.stage, this.filter, grid.kinds.includes(1)];
    if (basis.some((part, i) => part !== this.basis?.[i])) {
      this.brushes = brushes(palette);
      this.columns = shownColumns(grid.columns(this.stage), this.filter);
      this.legend.replaceChildren(...legend(palette, this.stage, basis[3]));
      this.basis = basis;
    }
    this.rows = shownRows(grid, this.filter, this.columns);
    if (this.isGrouped) this.rows = grouped(grid, this.rows);
    this.numRows = this.rows ? this.rows.length : grid.names.length;
    this.layout = measure(this.canvas.getContext("2d"), grid, this.columns);
    this.toolbar.update(frame, palette, this.stage);
    this.toolbar.updateCount(this.numRows, grid.names.length);
    this.panels.update(frame.panels);
    const whole = this.layout.head + this.numRows * ROW + 2;
    this.area.style.width = `${this.layout.width}px`;
    this.area.style.height = `${whole}px`;
    this.scroller.style.height = `${Math.max(this.layout.head + 3 * ROW, Math.min(this.height, whole + 16))}px`;
    this.canvas.setAttribute("aria-label", `keys and fields of partition ${frame.partition}`);
    this.canvas.setAttribute("aria-rowcount", this.numRows);
    this.canvas.setAttribute("aria-colcount", this.columns.length);
    if (this.cursor) this.cursor = this.numRows ? { ...this.cursor, row: Math.min(this.cursor.row, this.numRows - 1) } : null;
    this.paintSoon();
  }

  rowAt = (i) => (this.rows ? this.rows[i] : i);

  paintSoon() {
    this.frameAsked ??= requestAnimationFrame(() => {
      this.frameAsked = undefined;
      this.paint();
    });
  }

  paint() {
    const { grid, layout, columns, rowAt, brushes, numRows, cursor, isGrouped, probe } = this;
    const hasFocus = this.canvas.getRootNode().activeElement === this.canvas;
    draw(this.canvas, this.scroller, { grid, layout, columns, rowAt, brushes, numRows, cursor, isGrouped, hasFocus, probe });
    this.el.dataset.seq = grid.frame.seq;
    this.el.dataset.rows = numRows;
    this.el.dataset.ready = "1";
    performance.clearMarks("kitlib-painted");
    performance.mark("kitlib-painted", { detail: { seq: grid.frame.seq, sentAt: grid.frame.sent_at } });
    clearTimeout(this.dimming);
    const wait = grid.dimRings();
    if (wait) this.dimming = setTimeout(() => this.paintSoon(), wait + 20);
  }

  chooseStage(name) {
    this.stage = name;
    this.refresh();
    this.ask("stage", { name });
  }

  chooseOrder(isGrouped) {
    this.isGrouped = isGrouped;
    this.refresh();
  }

  chooseFilter(text) {
    this.filter = parseFilter(text);
    this.scroller.scrollTop = 0;
    this.refresh();
  }

  // -- a cell --------------------------------------------------------------------------------------------------------

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return cellAt(this.layout, this.scroller, event.clientX - box.left, event.clientY - box.top, this.numRows, this.columns.length);
  }

  clicked(event) {
    const { row, column } = this.at(event);
    if (row < 0) return;
    this.canvas.focus({ preventScroll: true });
    this.cursor = { row, column };
    this.askCell(false);
    this.paintSoon();
  }

  hovered(event) {
    const { row, column, isHead } = this.at(event);
    const over = this.columns[column];
    const hover = isHead ? over && `${over.name}: ${over.hover || over.group}` : row >= 0 && this.says(row, column);
    if ((hover || "") !== this.canvas.title) this.canvas.title = hover || "";
  }

  // "f3a1_0_0, rm_scores: missing and needed now"
  says(row, column) {
    const { grid } = this;
    const at = this.rowAt(row);
    const field = this.columns[column];
    const word = grid.frame.words[grid.statuses[at]];
    if (!field) return `${grid.names[at]}, ${word}`;
    const state = grid.palette.states[grid.state(at, field)];
    return `${grid.names[at]}, ${field.name}: ${state ? state.meaning : "not asked of this key"}`;
  }

  askCell(values) {
    const { row, column } = this.cursor;
    const field = this.columns[column]?.name ?? "";
    if (!values) {
      const said = this.says(row, column);
      const canRead = Boolean(field) && this.grid.frame.readable && this.grid.isThere(this.rowAt(row), this.columns[column]);
      this.asked = { row: this.grid.names[this.rowAt(row)], field };
      this.shown = { title: [this.asked.row, field].filter(Boolean).join("  ·  "), said: said.slice(said.lastIndexOf(field ? ": " : ", ") + 2), canRead };
      this.panels.showCell(this.shown);
    }
    this.ask("detail", { ...this.asked, values });
  }

  answered(message) {
    if (message.view !== this.id || message.kind !== "detail" || !this.asked) return;
    if (message.row !== this.asked.row || message.field !== this.asked.field) return; // the reader moved on
    this.shown = { ...this.shown, [message.values ? "values" : "facts"]: message.facts };
    this.panels.showCell(this.shown);
  }

  // -- keys ----------------------------------------------------------------------------------------------------------

  pressed(event) {
    event.stopPropagation();
    const { filter } = this.toolbar;
    if (event.key === "Escape") this.stepBack();
    else if (event.target === filter) {
      if (event.key === "Enter" || event.key === "ArrowDown") this.canvas.focus();
      else return;
    } else if (event.key === "/" && event.target.tagName !== "SELECT") filter.focus();
    else if (event.target !== this.canvas) return;
    else if (event.key === "Enter" && this.cursor) this.askCell(false);
    else {
      const page = Math.floor((this.scroller.clientHeight - this.layout.head) / ROW) - 1;
      const to = moved(this.cursor, event, this.numRows, this.columns.length, page);
      if (!to) return;
      this.cursor = to;
      this.reveal();
      this.spoken.textContent = `row ${to.row + 1} of ${this.numRows}: ${this.says(to.row, to.column)}`;
      this.paintSoon();
    }
    event.preventDefault();
  }

  // Escape: first the filter goes, then the cell, then the cursor.
  stepBack() {
    if (this.toolbar.filter.value) {
      this.toolbar.filter.value = "";
      this.chooseFilter("");
    } else if (this.panels.cell) {
      this.asked = null;
      this.panels.showCell(null);
    } else this.cursor = null;
    this.canvas.focus();
    this.paintSoon();
  }

  // Scroll the cursor into sight.
  reveal() {
    const { scroller, layout, cursor } = this;
    const top = cursor.row * ROW;
    const room = scroller.clientHeight - layout.head - ROW;
    scroller.scrollTop = Math.max(top - room, Math.min(scroller.scrollTop, top));
    if (cursor.column < 0) return;
    const left = cursor.column * layout.column;
    const wide = scroller.clientWidth - layout.left - layout.column;
    scroller.scrollLeft = Math.max(left - wide, Math.min(scroller.scrollLeft, left));
  }
}

async function render({ model, el }) {
  const data = await model.widget_manager.get_model(model.get("data_id"));
  const grid = gridOf(data);
  const view = new View(model, grid);
  el.append(view.el);
  const take = (what, detail) => view.take(what, detail);
  const answered = (message) => view.answered(message);
  grid.listeners.add(take);
  model.on("msg:custom", answered);
  const resized = new ResizeObserver(() => view.paintSoon());
  resized.observe(view.scroller);
  const themed = new MutationObserver(() => view.paintSoon()); // light to dark: the canvas has to be painted again
  themed.observe(document.body, { attributes: true });
  view.ask("hello", { seq: grid.frame.seq });
  return () => {
    view.ask("bye");
    grid.listeners.delete(take);
    model.off("msg:custom", answered);
    resized.disconnect();
    themed.disconnect();
  };
}

export default { render };
