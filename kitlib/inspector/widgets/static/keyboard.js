// Keys: arrows, Page, Home and End move the cursor; Enter asks for the cell; Escape steps back; / goes to the filter.

const STEPS = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

// Where a key takes the cursor; undefined if the key does not move it. Column -1 is the row as a whole.
export function moved(cursor, event, numRows, numColumns, page) {
  const { row, column } = cursor ?? { row: 0, column: 0 };
  const jump = event.ctrlKey || event.metaKey;
  const [down, right] = STEPS[event.key] ?? [0, 0];
  const to = {
    PageUp: [row - page, column],
    PageDown: [row + page, column],
    Home: jump ? [0, column] : [row, -1],
    End: jump ? [numRows - 1, column] : [row, numColumns - 1],
  }[event.key] ?? (event.key in STEPS ? (cursor ? [row + down, column + right] : [0, 0]) : undefined);
  if (!to || !numRows) return undefined;
  const within = (value, low, high) => Math.max(low, Math.min(high, value));
  return { row: within(to[0], 0, numRows - 1), column: within(to[1], -1, numColumns - 1) };
}
