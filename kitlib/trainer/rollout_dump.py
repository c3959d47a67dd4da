"""Rollouts as JSON lines: what went in, what came out, what it was worth.

verl 0.9.1: trainer/ppo/v1/trainer_base.py, PPOTrainer._log_rollout_data and _dump_generations. The columns are
verl's: input, output, gts, score, step, uid (the key), and for validation each entry of reward_extra_info. Rows are
sorted by uid, session and index, so that the generations of a prompt stand together.

Differs from verl: all steps go to one file (`rollouts.jsonl` of the run folder) unless `trainer.rollout_data_dir` is
set, which gives one file a step. Written in the caller's thread: a step of the shipped task is a few milliseconds of
text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensordict import TensorDict

from kitlib.keys import TrajectoryKey, is_trajectory_key


def sort_key(key: str) -> tuple[str, int, int]:
    """Order of rows in a dump: uid, session, output."""
    if not is_trajectory_key(key):
        return (key, 0, 0)
    parsed = TrajectoryKey.parse(key)
    return (parsed.uid, parsed.session_id, parsed.index)


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add one JSON object a line; objects that JSON does not know are written as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


class RolloutWriter:
    """Decodes the rows of a step and writes them to `file`, or to `folder/<step>.jsonl`."""

    def __init__(self, tokenizer: Any, file: Path | None = None, folder: Path | None = None) -> None:
        self.tokenizer = tokenizer
        self.file = file
        self.folder = folder

    def path(self, step: int) -> Path | None:
        return self.folder / f"{step}.jsonl" if self.folder is not None else self.file

    def write(
        self, keys: Sequence[str], data: TensorDict, step: int, extra: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Write one row a key. `data`: prompts [P] and responses [R] token ids, rm_scores [R], reward_model."""
        path = self.path(step)
        if path is None:
            return
        inputs, outputs = (self.decode(data[name].unbind()) for name in ("prompts", "responses"))
        scores = [row.sum().item() for row in data["rm_scores"].unbind()]
        truths = [info.get("ground_truth") for info in data.get("reward_model").tolist()]
        rows = [
            {"input": i, "output": o, "gts": t, "score": s, "step": step, "uid": key, **(extra[n] if extra else {})}
            for n, (key, i, o, t, s) in enumerate(zip(keys, inputs, outputs, truths, scores, strict=True))
        ]
        append_jsonl(path, sorted(rows, key=lambda row: sort_key(row["uid"])))

    def decode(self, rows: Iterable[Any]) -> list[str]:
        """Token ids to text, markers such as `<tool_call>` kept as the tokenizer keeps them."""
        return self.tokenizer.batch_decode([row.tolist() for row in rows], skip_special_tokens=True)
