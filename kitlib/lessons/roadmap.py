"""The call chain as one picture, with the stage of the notebook lit.

    once        TaskRunner.run > PPOTrainer.init > PPOTrainer.fit
    rollout     1 submit > 2 agent loop > 3 sample
    score       (reward model) > 4 balance > 5 old log-prob > (reference) > (values)
    learn       6 advantage > (update critic) > 7 update actor
    finish      (checkpoint) > 8 weight sync > ... > 10 clear
    under all   TransferQueue

Stages come from `kitlib.contract`: a stage that the config switches off is dashed and has no number. Drawn with the
reader's own text colour and half-transparent layers, so that light and dark themes both work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from kitlib.contract import STAGES, needs
from kitlib.inspector.judgement import check_stage

QUEUE = "transfer_queue"
ONCE = {
    "TaskRunner.run": "config in, metrics out",
    "PPOTrainer.init": "builds the parts",
    "PPOTrainer.fit": "the loop over steps",
}
LANES: dict[str, tuple[str, ...]] = {
    "rollout": ("submit_batch_to_rollout", "generate_sequences", "sample"),
    "score": (
        "compute_reward_colocate",
        "balance_batch",
        "compute_old_log_prob",
        "compute_ref_log_prob",
        "compute_values",
    ),
    "learn": ("compute_advantage", "update_critic", "update_actor"),
    "finish": ("save_checkpoint", "update_weights", "validate", "compute_metrics", "log_rollout_data", "clear"),
}
BESIDE = "generate_sequences"  # runs on threads of its own while the trainer goes on

LEFT, WIDTH, HEIGHT, GAP_X, GAP_Y = 74, 146, 40, 18, 16  # pixels
_LIT = "fill:rgba(230,159,0,.42);stroke:#b8860b;stroke-width:2.5"
_RUNS = "fill:rgba(0,114,178,.10);stroke:currentColor;stroke-opacity:.7"
_OFF = "fill:none;stroke:currentColor;stroke-opacity:.4;stroke-dasharray:4 3"


@dataclass(frozen=True)
class Box:
    """One stop of the road. `number` is None for a stage that does not run, and for what happens once."""

    name: str
    title: str
    number: int | None = None
    runs: bool = True


@dataclass(frozen=True)
class Roadmap:
    """Shown as a picture in a notebook and as text elsewhere."""

    lanes: dict[str, tuple[Box, ...]]
    lit: str | None

    def __repr__(self) -> str:
        lines = [f"{lane:10}" + " > ".join(map(self._words, boxes)) for lane, boxes in self.lanes.items()]
        queue = "[TransferQueue]" if self.lit == QUEUE else "TransferQueue"
        return "\n".join([*lines, f"{'under all':10}{queue}", "[you are here]   (off by this config)"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.svg()}

    def _words(self, box: Box) -> str:
        words = f"{box.number} {box.title}" if box.number else box.title
        return f"[{words}]" if box.name == self.lit else words if box.runs else f"({words})"

    def svg(self) -> str:
        """The picture as one SVG element."""
        width = LEFT + max(map(len, self.lanes.values())) * (WIDTH + GAP_X)
        height = (len(self.lanes) + 1) * (HEIGHT + GAP_Y) + 22
        parts = [part for row, (lane, boxes) in enumerate(self.lanes.items()) for part in self._lane(row, lane, boxes)]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="100%" role="img" '
            f'style="max-width:{width}px;font:12px/1 sans-serif" aria-label="{escape(repr(self))}">'
            f"{''.join(parts)}{''.join(self._queue(width))}</svg>"
        )

    def _lane(self, row: int, lane: str, boxes: tuple[Box, ...]) -> Iterator[str]:
        y = row * (HEIGHT + GAP_Y) + 4
        yield _text(0, y + HEIGHT / 2 + 4, lane, "font-style:italic", "start")
        for position, box in enumerate(boxes):
            x = LEFT + position * (WIDTH + GAP_X)
            if position:
                yield _text(x - GAP_X / 2, y + HEIGHT / 2 + 4, "→", "opacity:.7")
            yield from self._box(x, y, box)

    def _box(self, x: float, y: float, box: Box) -> Iterator[str]:
        style = _LIT if box.name == self.lit else _RUNS if box.runs else _OFF
        if box.name == BESIDE:  # a second frame behind the first: many of them at once
            yield _rect(x + 4, y - 4, WIDTH, HEIGHT, _RUNS)
        yield _rect(x, y, WIDTH, HEIGHT, style)
        faded = "" if box.runs else ";opacity:.65"
        weight = "font-weight:700" if box.runs else "font-weight:400"
        yield _text(x + WIDTH / 2, y + 16, self._label(box), weight + faded)
        font = "font:10px monospace" if box.name in STAGES else "font-size:11px"
        yield _text(x + WIDTH / 2, y + 31, ONCE.get(box.name, box.name), font + (faded or ";opacity:.8"))

    def _label(self, box: Box) -> str:
        here = "▶ " if box.name == self.lit else ""
        return f"{here}{box.number} {box.title}" if box.number else f"{here}{box.title}"

    def _queue(self, width: float) -> Iterator[str]:
        y = len(self.lanes) * (HEIGHT + GAP_Y) + 4
        yield _rect(LEFT, y, width - LEFT - GAP_X, HEIGHT, _LIT if self.lit == QUEUE else _RUNS)
        here = "▶ " if self.lit == QUEUE else ""
        middle = LEFT + (width - LEFT - GAP_X) / 2
        yield _text(middle, y + 16, f"{here}TransferQueue", "font-weight:700")
        said = "every stage reads its fields here and writes its fields here; only keys and tags move between stages"
        yield _text(middle, y + 31, said, "opacity:.8")
        legend = "numbers: order in one step · double frame: in the background · dashed: off by this config"
        yield _text(LEFT, y + HEIGHT + 17, legend, "opacity:.8;font-size:11px", "start")


def roadmap(stage: str | None = None, config: Any = None) -> Roadmap:
    """The call chain with `stage` lit: a name of kitlib.contract.STAGES, a call of ONCE such as "PPOTrainer.fit",
    "transfer_queue", or None for the bare map.

    config: decides which stages run; None means verl's defaults. Raises UnknownStageError.
    """
    if stage is not None and stage != QUEUE and stage not in ONCE:
        check_stage(stage)
    lanes = {"once": tuple(Box(name, name) for name in ONCE)}
    number = 0
    for lane, names in LANES.items():
        boxes = []
        for name in names:
            runs = needs(name, config).runs
            number += runs
            boxes.append(Box(name, STAGES[name].title, number if runs else None, runs))
        lanes[lane] = tuple(boxes)
    return Roadmap(lanes, stage)


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" style="{style}"/>'


def _text(x: float, y: float, text: str, style: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" style="fill:currentColor;{style}">{escape(text)}</text>'
