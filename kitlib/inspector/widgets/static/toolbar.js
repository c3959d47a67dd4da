// What stands above the grid: the verdict, partition tabs, stage, filter, follow and the time slider.
import { FILTER_HINT } from "./filter.js";

// node("div", {class: "x", "aria-label": "y", text: "z", on: {click: f}}, child, ..)
export function node(tag, { text, on, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(name, value);
  for (const [event, handler] of Object.entries(on ?? {})) made.addEventListener(event, handler);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

export class Toolbar {
  // asks: {partition(id), stage(name), filter(text), group(on), follow(on), moment(at)}
  constructor(asks) {
    this.verdict = node("span", { class: "kitlib-verdict" });
    this.trouble = node("span", { class: "kitlib-trouble", role: "alert" });
    this.tabs = node("div", { class: "kitlib-tabs", role: "tablist", "aria-label": "partitions" });
    this.stage = node("select", { "aria-label": "judge by the needs of this stage" });
    this.stage.addEventListener("change", () => asks.stage(this.stage.value));
    this.filter = node("input", { type: "search", class: "kitlib-filter", placeholder: FILTER_HINT, title: FILTER_HINT });
    this.filter.setAttribute("aria-label", "filter rows and fields");
    this.filter.addEventListener("input", () => asks.filter(this.filter.value));
    this.group = node("button", { type: "button", "aria-pressed": "false", text: "by uid", title: "show the rows of a uid together" });
    this.group.addEventListener("click", () => {
      const on = this.group.getAttribute("aria-pressed") !== "true";
      this.group.setAttribute("aria-pressed", String(on));
      asks.group(on);
    });
    this.count = node("span", { class: "kitlib-count", role: "status" });
    this.follow = node("button", { type: "button", class: "kitlib-follow" });
    this.follow.addEventListener("click", () => asks.follow(this.follow.getAttribute("aria-pressed") !== "true"));
    this.slider = node("input", { type: "range", min: 0, class: "kitlib-slider", "aria-label": "recorded moment" });
    this.slider.addEventListener("input", () => asks.moment(Number(this.slider.value)));
    this.time = node("span", { class: "kitlib-time" });
    this.asks = asks;
    const say = (text, control) => node("label", { text: `${text} ` }, control);
    this.el = node(
      "div",
      { class: "kitlib-bar" },
      node("div", { class: "kitlib-line" }, this.tabs, this.verdict, this.trouble),
      node("div", { class: "kitlib-line" }, say("next stage", this.stage), this.filter, this.group, this.count, this.follow, this.time),
      node("div", { class: "kitlib-line" }, this.slider),
    );
  }

  update(frame, palette, stage) {
    const [said, state] = frame.headline;
    this.verdict.textContent = said;
    this.verdict.style.cssText = palette.states.find((one) => one.name === state)?.css ?? "";
    this.trouble.textContent = frame.trouble;
    this.updateTabs(frame);
    this.updateStages(palette, stage);
    const hasMoments = frame.moments > 1 || (frame.live && frame.moments > 0);
    this.slider.parentElement.hidden = !hasMoments;
    this.slider.max = Math.max(0, frame.moments - 1);
    if (document.activeElement !== this.slider) this.slider.value = frame.at;
    const newest = frame.live ? "live" : "newest";
    this.follow.hidden = !frame.live && frame.moments < 2;
    this.follow.textContent = frame.following ? `● ${newest}` : frame.live ? "▶ follow" : "▶ newest";
    this.follow.title = frame.following ? "freeze this picture" : "show the newest picture again";
    this.follow.setAttribute("aria-pressed", String(frame.following));
    const place = hasMoments && !(frame.live && frame.following) ? `moment ${frame.at + 1} of ${frame.moments}` : "";
    const still = frame.following || place ? "" : "frozen";
    this.time.textContent = [place, frame.label, still, clock(frame.taken_at)].filter(Boolean).join(", ");
    this.slider.setAttribute("aria-valuetext", this.time.textContent);
  }

  updateTabs(frame) {
    const key = JSON.stringify([frame.partition, frame.partitions]);
    if (key === this.tabsShown) return;
    this.tabsShown = key;
    const focused = this.tabs.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
    this.tabs.replaceChildren(
      ...frame.partitions.map(([id, number]) =>
        node("button", {
          type: "button",
          role: "tab",
          "data-id": id,
          "aria-selected": String(id === frame.partition),
          text: `${id} ${number.toLocaleString("en")}`,
          on: { click: () => this.asks.partition(id) },
        }),
      ),
    );
    if (focused !== undefined) [...this.tabs.children].find((tab) => tab.dataset.id === focused)?.focus();
  }

  updateStages(palette, stage) {
    if (this.stagesShown !== palette) {
      this.stagesShown = palette;
      const none = node("option", { value: "", text: "(none: only what is there)" });
      this.stage.replaceChildren(none, ...palette.stages.map(([name, title]) => node("option", { value: name, title, text: name })));
    }
    this.stage.value = stage;
  }

  updateCount(numShown, numRows) {
    const all = numRows.toLocaleString("en");
    this.count.textContent = numShown === numRows ? `${all} keys` : `${numShown.toLocaleString("en")} of ${all} keys`;
  }
}
