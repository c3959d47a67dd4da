// What stands below the grid: the legend, and panels for the clicked cell, the static views and the sampler's wait.
import { node } from "./toolbar.js";

const TITLES = { cell: "cell", presence: "summary", groups: "groups", waiting: "why waiting" };

// The glyphs that can appear under a stage; those of padding rows only if there is one.
export function legend(palette, stage, hasPadding) {
  const used = new Set(palette.looks[stage].flatMap(([, ...look]) => look.slice(0, hasPadding ? 3 : 2)));
  const entries = palette.states.filter((state, i) => used.has(i) && state.meaning);
  return entries.map((state) => {
    const glyph = node("span", { text: state.glyph, "aria-hidden": "true" });
    glyph.style.cssText = `${state.css};padding:0 4px`;
    return node("span", { class: "kitlib-legend-entry" }, glyph, ` ${state.meaning}`);
  });
}

export class PanelBar {
  // asks: {panel(name), values()}
  constructor(asks) {
    this.asks = asks;
    this.open = "cell";
    this.tabs = node("div", { class: "kitlib-tabs", role: "tablist", "aria-label": "panels" });
    this.body = node("div", { class: "kitlib-panel", role: "tabpanel", tabindex: 0 });
    this.el = node("div", { class: "kitlib-panels" }, this.tabs, this.body);
    this.cell = null; // {title, said, facts, values}
    this.html = new Map();
  }

  update(names) {
    if (this.tabs.children.length === names.length) return;
    this.tabs.replaceChildren(
      ...names.map((name) =>
        node("button", { type: "button", role: "tab", "data-id": name, text: TITLES[name], on: { click: () => this.choose(name) } }),
      ),
    );
    this.mark();
    this.paint();
  }

  choose(name) {
    if (name === this.open) return;
    this.open = name;
    this.mark();
    this.paint();
    this.asks.panel(name);
  }

  mark() {
    for (const tab of this.tabs.children) tab.setAttribute("aria-selected", String(tab.dataset.id === this.open));
  }

  showHtml(name, html) {
    this.html.set(name, html);
    if (name === this.open) this.paint();
  }

  showCell(cell) {
    this.cell = cell;
    if (cell && this.open !== "cell") {
      this.choose("cell");
    } else if (this.open === "cell") this.paint();
  }

  paint() {
    this.body.dataset.panel = this.open;
    if (this.open === "cell") this.body.replaceChildren(...this.cellNodes());
    else if (this.html.has(this.open)) this.body.innerHTML = this.html.get(this.open); // escaped by the html writer
    else this.body.replaceChildren(node("span", { class: "kitlib-dim", text: "waiting for the kernel …" }));
  }

  cellNodes() {
    if (!this.cell) return [node("span", { class: "kitlib-dim", text: "Click a cell, or move to it with the arrow keys and press Enter." })];
    const { title, said, facts, values, canRead } = this.cell;
    const pairs = [["state", said], ...(facts ?? [["kernel", "waiting for the kernel …"]]), ...(values ?? [])];
    const list = node("dl", {}, ...pairs.flatMap(([label, text]) => [node("dt", { text: label }), node("dd", { text })]));
    const ask = node("button", { type: "button", class: "kitlib-values", text: "show values", on: { click: () => this.asks.values() } });
    return [node("div", { class: "kitlib-title", text: title }), list, ...(canRead && !values ? [ask] : [])];
  }
}
