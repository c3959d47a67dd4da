"""The drawing of time lines for a page: one SVG element, no script, no style sheet, no address.

verl 0.9.1 has no counterpart. Colours are those of the states of a view, half-transparent, so that light and dark
pages both work. A dashed line runs through every lane and is seen where nothing else is drawn: idle time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from kitlib.inspector.render.printable import printable
from kitlib.inspector.render.states import AMBER, BLUE, GREEN, PURPLE, VERMILLION
from kitlib.inspector.timeline import Pause, Span, Timeline, merged

LEFT, LANE, GAP, HEAD = 78, 16, 6, 18  # pixels: names, height of a lane, between lanes, above a run
NUM_PIXELS = (760, 380, 190)  # widths of the axis that are tried until the page is small enough
# What is drawn in which colour; the others are OTHER.
COLOURS = {
    "update_actor": BLUE,
    "update_critic": BLUE,
    "compute_old_log_prob": AMBER,
    "compute_log_prob": AMBER,
    "compute_ref_log_prob": AMBER,
    "compute_values": AMBER,
}
OTHER, REQUESTS, SYNC = PURPLE, GREEN, VERMILLION
LEGEND = (
    (BLUE, "U", "update"),
    (AMBER, "o", "score tokens"),
    (OTHER, "-", "other stages"),
    (REQUESTS, "", "requests at once"),
    (SYNC, "|", "sync"),
)
LETTERS = {colour: letter for colour, letter, _ in LEGEND}  # a colour is never the only difference
LETTER_WIDTH = 9  # pixels; a narrower bar has none


def draw(timelines: Sequence[Timeline], seconds: float, budget: int) -> str:
    """All runs below each other on one axis of `seconds`; coarser if it would take more than `budget` bytes."""
    picture = ""
    for width in NUM_PIXELS:
        picture = _draw(timelines, width / (seconds or 1.0), width)
        if len(picture.encode()) <= budget:
            break
    return picture


def _draw(timelines: Sequence[Timeline], scale: float, width: int) -> str:
    parts, top = [], 0
    for timeline in timelines:
        if len(timelines) > 1:
            parts.append(_text(0, top + 13, timeline.headline))
            top += HEAD
        bottom = top + len(timeline.lanes) * (LANE + GAP)
        parts += _syncs(timeline, scale, top, bottom)
        parts += [_restart(timeline, pause, scale, top, bottom) for pause in timeline.pauses]
        for number, lane in enumerate(timeline.lanes):
            parts.append(_lane(timeline, lane, scale, top + number * (LANE + GAP)))
        top = bottom + GAP
    parts.append(_legend(top, any(timeline.pauses for timeline in timelines)))
    top += HEAD
    size = f'width="{LEFT + width}" height="{top}" viewBox="0 0 {LEFT + width} {top}"'
    style = "font:11px ui-monospace,Menlo,Consolas,monospace;max-width:100%;display:block;margin:6px 0"
    return f'<svg {size} style="{style}">{"".join(parts)}</svg>'


def _lane(timeline: Timeline, lane: str, scale: float, top: int) -> str:
    up = _up(timeline, scale, top + LANE // 2)
    idle = f'<path d="{up}" stroke="currentColor" opacity=".45" stroke-dasharray="2 3"/>'
    bars = _load(timeline, lane, scale, top) if lane in timeline.servers else _stages(timeline, lane, scale, top)
    return f"{_text(0, top + 12, lane)}{idle}{bars}"


def _up(timeline: Timeline, scale: float, middle: int) -> str:
    """The line of a lane, broken where the run was down."""
    edges = [timeline.began, *(edge for pause in timeline.pauses for edge in pause[:2]), timeline.ended]
    at = [LEFT + (moment - timeline.began) * scale for moment in edges]
    return "".join(f"M{left:.0f} {middle}H{right:.0f}" for left, right in zip(at[::2], at[1::2], strict=True))


def _restart(timeline: Timeline, pause: Pause, scale: float, top: int, bottom: int) -> str:
    """Two slashes through all lanes."""
    left = LEFT + (pause.began - timeline.began) * scale
    width, lines = (pause.ended - pause.began) * scale, ""
    for third in (1, 2):
        lines += f"M{left + width * third / 3 - 4:.1f} {bottom - GAP}L{left + width * third / 3 + 4:.1f} {top}"
    return f'<path d="{lines}" stroke="currentColor" stroke-width="1.5">{_title(f"down {pause.seconds:.1f} s")}</path>'


def _load(timeline: Timeline, lane: str, scale: float, top: int) -> str:
    """Requests at once, as an area whose full height is the most there were."""
    num_bins = max(1, round(timeline.extent * scale / 2))
    edges = [timeline.began + timeline.extent * i / num_bins for i in range(num_bins + 1)]
    load = timeline.load(lane, edges)
    most, bottom = max(load) or 1.0, top + LANE
    outline = "".join(f"V{bottom - value / most * LANE:.0f}h2" for value in load)
    title = f"{lane}: up to {most:.0f} requests at once"
    return f'<path d="M{LEFT} {bottom}{outline}V{bottom}z" fill="{REQUESTS}" opacity=".75">{_title(title)}</path>'


def _stages(timeline: Timeline, lane: str, scale: float, top: int) -> str:
    """Bars of the stages, one path a name; waiting is not drawn."""
    by_name: dict[str, list[Span]] = {}
    for span in timeline.of_lane(lane):
        if span.kind != "wait":
            by_name.setdefault(span.name, []).append(span)
    paths = []
    for name, spans in by_name.items():
        colour = SYNC if spans[0].kind == "sync" else COLOURS.get(name, OTHER)
        boxes = _boxes(timeline, spans, scale)
        drawn = "".join(f"M{left:.1f} {top}h{right - left:.2f}v{LANE}h{left - right:.2f}z" for left, right in boxes)
        title = f"{name}: {sum(span.seconds for span in spans):.2f} s in {len(spans)} spans"
        paths.append(f'<path d="{drawn}" fill="{colour}" opacity=".75">{_title(title)}</path>')
        wide = [(left + right) / 2 for left, right in boxes if right - left >= LETTER_WIDTH]
        paths += (_text(middle - 3, top + 12, LETTERS[colour]) for middle in wide)
    return "".join(paths)


def _boxes(timeline: Timeline, spans: Iterable[Span], scale: float) -> list[tuple[float, float]]:
    """Boxes of at least a quarter pixel; those less than a pixel apart are drawn as one."""
    boxes: list[tuple[float, float]] = []
    for began, ended in merged(spans):
        left, right = (LEFT + (moment - timeline.began) * scale for moment in (began, ended))
        if boxes and left < boxes[-1][1] + 1:
            boxes[-1] = (boxes[-1][0], right)
        else:
            boxes.append((left, max(right, left + 0.25)))
    return boxes


def _syncs(timeline: Timeline, scale: float, top: int, bottom: int) -> list[str]:
    lines = "".join(
        f"M{LEFT + (moment - timeline.began) * scale:.1f} {top}V{bottom - GAP}" for moment in timeline.syncs()
    )
    return [f'<path d="{lines}" stroke="{SYNC}" stroke-width="1">{_title("weight sync")}</path>'] if lines else []


def _legend(top: int, has_pauses: bool) -> str:
    entries, left = [], LEFT
    for colour, letter, words in LEGEND:
        box = f'<path d="M{left} {top + 3}h12v12h-12z" fill="{colour}" opacity=".75"/>'
        entries.append(box + (_text(left + 3, top + 13, letter) if letter else "") + _text(left + 16, top + 13, words))
        left += 32 + 7 * len(words)
    return "".join(entries) + _text(left, top + 13, "- - idle" + (",  // restart" if has_pauses else ""))


def _text(left: float, baseline: int, text: str) -> str:
    return f'<text x="{left:.4g}" y="{baseline}" fill="currentColor">{escape(printable(text))}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(printable(text))}</title>"
