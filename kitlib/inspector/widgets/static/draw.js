// Drawing: one canvas over the scrolled area, the header and the key column always in sight.
// States come with their css from kitlib.inspector.render.states; the theme gives text colour and background.

import { uidOf } from "./names.js";

export const ROW = 20; // px
const COLUMN = 24;
const GROUPS = 18; // px of the strip with the names of the groups
const FONT = "12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace";
const LONGEST_KEY = 44; // characters; a longer key keeps head and tail
const RING = "#b8860b";

// "color:#123;opacity:.5;background:..;font-weight:700" -> what a canvas understands.
function brush(css) {
  const of = (name) => new RegExp(`(?:^|;)${name}:([^;]+)`).exec(css)?.[1];
  return { color: of("color"), fill: of("background"), bold: of("font-weight") === "700", alpha: Number(of("opacity") ?? 1) };
}

export function brushes(palette) {
  const states = palette.states.map((state) => ({ ...state, ...brush(state.css) }));
  return {
    states,
    stray: states.find((state) => state.name === "WARN"),
    statuses: new Map(Object.entries(palette.status_css).map(([status, css]) => [status, brush(css)])),
  };
}

// "var(--kb)" is mixed from the text colour of the theme; `probe`, an element of the page, wears it to tell which that is.
function mixed(brushes, probe, text) {
  if (brushes.mixedFor === text) return;
  for (const state of brushes.states) {
    probe.style.color = state.color ?? "";
    state.ink = state.color && getComputedStyle(probe).color;
  }
  brushes.mixedFor = text;
}

export function shortened(name, limit) {
  if (name.length <= limit) return name;
  const head = Math.ceil(limit / 2) - 1;
  return `${name.slice(0, head)}…${name.slice(name.length - (limit - head - 1))}`;
}

// Where everything is, in px of the scrolled content. grid: Grid, columns: those shown.
export function measure(context, grid, columns) {
  context.font = FONT;
  const char = context.measureText("0").width;
  const longestWord = Math.max(6, ...grid.frame.words.map((word) => word.length));
  const keyChars = Math.min(Math.max(6, grid.short.longest), LONGEST_KEY);
  const keyWidth = Math.ceil(keyChars * char) + 16;
  const statusWidth = Math.ceil(Math.min(longestWord, 12) * char) + 18;
  const longestColumn = Math.max(4, ...columns.map((column) => column.name.length));
  const head = GROUPS + Math.ceil(Math.min(longestColumn, 22) * char) + 10;
  const left = keyWidth + statusWidth;
  return { char, keyChars, keyWidth, statusWidth, left, head, width: left + columns.length * COLUMN + 8, column: COLUMN };
}

export function cellAt(layout, scroller, x, y, numRows, numColumns) {
  const row = y < layout.head ? -1 : Math.floor((y - layout.head + scroller.scrollTop) / ROW);
  const column = x < layout.left ? -1 : Math.floor((x - layout.left + scroller.scrollLeft) / COLUMN);
  return { row: row < numRows ? row : -1, column: column < numColumns ? column : -1, isHead: y < layout.head };
}

export function draw(canvas, scroller, view) {
  const { clientWidth: width, clientHeight: height } = scroller;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  const theme = getComputedStyle(canvas);
  const ink = { text: theme.color, paper: theme.backgroundColor, width, height };
  mixed(view.brushes, view.probe, ink.text);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = ink.paper;
  context.fillRect(0, 0, width, height);
  context.textBaseline = "middle";
  body(context, scroller, view, ink);
  keys(context, scroller, view, ink);
  header(context, scroller, view, ink);
  focus(context, scroller, view, ink);
}

function visible(scroller, view, ink) {
  const first = Math.floor(scroller.scrollTop / ROW);
  return [first, Math.min(view.numRows, first + Math.ceil((ink.height - view.layout.head) / ROW) + 1)];
}

function body(context, scroller, { grid, layout, columns, rowAt, brushes, numRows }, ink) {
  const [first, last] = visible(scroller, { layout, numRows }, ink);
  const width = grid.frame.num_fields;
  context.textAlign = "center";
  for (let i = first; i < last; i++) {
    const row = rowAt(i);
    const y = layout.head + i * ROW - scroller.scrollTop;
    for (let j = 0; j < columns.length; j++) {
      const x = layout.left + j * COLUMN - scroller.scrollLeft;
      if (x + COLUMN < layout.left || x > ink.width) continue;
      const state = grid.state(row, columns[j]);
      if (state >= 0) mark(context, brushes.states[state], x, y, ink);
      if (columns[j].at >= 0 && grid.written.has(row * width + columns[j].at)) ring(context, x, y);
    }
  }
  context.globalAlpha = 1;
}

function mark(context, state, x, y, ink) {
  context.globalAlpha = 1;
  if (state.fill) {
    context.fillStyle = state.fill;
    context.fillRect(x + 1, y + 1, COLUMN - 2, ROW - 2);
  }
  context.globalAlpha = state.alpha;
  context.font = state.bold ? `bold ${FONT}` : FONT;
  context.fillStyle = state.ink ?? ink.text;
  context.fillText(state.glyph, x + COLUMN / 2, y + ROW / 2 + 1);
}

function ring(context, x, y) {
  context.globalAlpha = 1;
  context.strokeStyle = RING;
  context.lineWidth = 1.5;
  context.strokeRect(x + 2, y + 2, COLUMN - 4, ROW - 4);
}

function keys(context, scroller, { grid, layout, rowAt, brushes, numRows, isGrouped }, ink) {
  context.fillStyle = ink.paper;
  context.fillRect(0, layout.head, layout.left, ink.height);
  context.textAlign = "left";
  context.font = FONT;
  const [first, last] = visible(scroller, { layout, numRows }, ink);
  for (let i = first; i < last; i++) {
    const row = rowAt(i);
    const y = layout.head + i * ROW - scroller.scrollTop + ROW / 2 + 1;
    const word = grid.frame.words[grid.statuses[row]] ?? "";
    if (isGrouped && i > 0 && uidOf(grid.names[rowAt(i - 1)]) !== uidOf(grid.names[row])) {
      rule(context, 0, y - ROW / 2 - 1, ink.width, 1, ink);
    }
    const look = grid.kinds[row] === 3 ? brushes.stray : brushes.statuses.get(word);
    context.fillStyle = ink.text;
    context.globalAlpha = grid.kinds[row] === 1 ? 0.65 : 1;
    context.font = grid.kinds[row] === 2 ? `bold ${FONT}` : FONT;
    context.fillText(shortened(grid.short.of(grid.names[row]), layout.keyChars), 8, y);
    context.font = FONT;
    context.globalAlpha = look?.alpha ?? 0.75;
    if (look?.fill) {
      context.fillStyle = look.fill;
      context.fillRect(layout.keyWidth, y - ROW / 2 + 2, layout.statusWidth - 8, ROW - 6);
      context.globalAlpha = 1;
    }
    context.fillStyle = ink.text;
    context.fillText(shortened(["", "padding", "", "stray"][grid.kinds[row]] || word, 12), layout.keyWidth + 4, y);
  }
  context.globalAlpha = 1;
  rule(context, layout.left - 1, layout.head, 0, ink.height, ink);
}

function header(context, scroller, { layout, columns }, ink) {
  context.fillStyle = ink.paper;
  context.fillRect(0, 0, ink.width, layout.head);
  context.save();
  context.beginPath();
  context.rect(layout.left, 0, ink.width, ink.height);
  context.clip();
  let start = 0;
  for (let j = 0; j <= columns.length; j++) {
    if (j < columns.length) name(context, columns[j], layout.left + j * COLUMN - scroller.scrollLeft, layout, ink);
    if (j > 0 && (j === columns.length || columns[j].group !== columns[j - 1].group)) {
      const part = { label: columns[start].group, from: start, to: j, isLast: j === columns.length };
      group(context, part, scroller, layout, ink);
      start = j;
    }
  }
  context.restore();
  context.fillStyle = ink.text;
  context.font = FONT;
  context.textAlign = "left";
  context.globalAlpha = 0.65;
  context.fillText("key", 8, layout.head - 10);
  context.fillText("status", layout.keyWidth + 4, layout.head - 10);
  context.globalAlpha = 1;
  rule(context, 0, layout.head - 0.5, ink.width, 0, ink);
}

function name(context, column, x, layout, ink) {
  context.save();
  context.translate(x + COLUMN / 2 + 1, layout.head - 6);
  context.rotate(-Math.PI / 2);
  context.textAlign = "left";
  context.font = column.isRead ? `bold ${FONT}` : FONT;
  context.fillStyle = ink.text;
  context.fillText(shortened(column.name, 22), 0, 0);
  context.restore();
}

function group(context, { label, from, to, isLast }, scroller, layout, ink) {
  const left = Math.max(layout.left, layout.left + from * COLUMN - scroller.scrollLeft);
  const right = layout.left + to * COLUMN - scroller.scrollLeft;
  if (right < layout.left) return;
  const end = isLast ? Math.max(right, ink.width) : right; // nothing stands in its way
  const room = Math.floor((end - left - 8) / layout.char);
  context.font = `italic ${FONT}`;
  context.textAlign = "left";
  context.fillStyle = ink.text;
  context.globalAlpha = 0.75;
  if (room > 2) context.fillText(label.length > room ? `${label.slice(0, room - 1)}…` : label, left + 4, GROUPS / 2);
  context.globalAlpha = 1;
  rule(context, right - 0.5, isLast ? GROUPS : 0, 0, ink.height, ink);
}

function focus(context, scroller, { cursor, layout, columns, hasFocus }, ink) {
  if (!cursor) return;
  const y = layout.head + cursor.row * ROW - scroller.scrollTop;
  if (y + ROW <= layout.head || y > ink.height) return;
  const x = cursor.column < 0 ? 2 : layout.left + cursor.column * COLUMN - scroller.scrollLeft;
  context.save();
  context.beginPath();
  context.rect(cursor.column < 0 ? 0 : layout.left, layout.head, ink.width, ink.height);
  context.clip();
  context.strokeStyle = ink.text;
  context.lineWidth = hasFocus ? 2 : 1;
  context.strokeRect(x + 1, y + 1, (cursor.column < 0 ? layout.left - 4 : COLUMN) - 2, ROW - 2);
  context.restore();
}

function rule(context, x, y, width, height, ink) {
  context.save();
  context.globalAlpha = 0.25;
  context.fillStyle = ink.text;
  context.fillRect(x, y, width || 1, height || 1);
  context.restore();
}
