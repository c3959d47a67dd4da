// (root) => texts below a contrast of 4.5 to 1, as they are painted: half-transparent layers and opacity of every element
// around a text, down to the paper of the page. Colours of a drawing lie below its letters and are left out.
(root) => {
  const channels = (text) => {
    const numbers = (text.match(/-?[\d.]+(?:e-?\d+)?/g) ?? [0, 0, 0, 0]).map(Number);
    const [r, g, b, alpha = 1] = numbers;
    return text.startsWith("color(srgb") ? [255 * r, 255 * g, 255 * b, alpha] : [r, g, b, alpha];
  };
  const over = (top, below, alpha) => below.map((value, i) => top[i] * alpha + value * (1 - alpha));
  const painted = (elements, ink) => {
    const layer = (i, below) => {
      if (i === elements.length) return ink ? over(ink, below, ink[3]) : below;
      const style = getComputedStyle(elements[i]);
      const paper = channels(style.backgroundColor);
      return over(layer(i + 1, over(paper, below, paper[3])), below, Number(style.opacity));
    };
    return layer(0, [255, 255, 255]);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((value) => (value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = new Set();
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim();
    const element = texts.currentNode.parentElement;
    if (!text || !element.getClientRects().length) continue;
    const around = [];
    for (let one = element; one; one = one.parentElement) around.unshift(one);
    const style = getComputedStyle(element);
    const ink = luminance(painted(around, channels(element.closest("svg") ? style.fill : style.color)));
    const paper = luminance(painted(around, null));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) found.add(`${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  return [...found];
}
