"""Writes docs/estimators.md, a table of all advantage estimators, from the registry: python docs/make_estimators.py

What an estimator needs are the names of its parameters; its formula is the indented block of its docstring.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from kitlib.algos.advantage import ADV_ESTIMATOR_REGISTRY, estimator_fields, estimator_parameters
from kitlib.contract import FIELDS, STAGES

PAGE = Path(__file__).parent / "estimators.md"
V1_FETCHES = {"uid", "response_mask", "rm_scores", "rollout_log_probs", "old_log_probs", "ref_log_prob", "values"}
"""verl 0.9.1, trainer/ppo/v1/trainer_base.py, PPOTrainer._compute_advantage, line 1745."""

HEAD = """# Advantage estimators

Made by `python docs/make_estimators.py` from the registry of `kitlib/algos/advantage.py`; a test holds it in step.

`algorithm.adv_estimator` names one of them. All get `rm_scores` (as rewards, less the KL if it is in the reward),
`response_mask` and what the third column names; a run that does not have a needed field is refused at its start, and
the message names the field. "Group-wise": rows of one prompt (`uid`) are compared. "In verl's V1": usable with verl
0.9.1, whose V1 trainer fetches the same seven fields whatever the estimator; kitlib fetches what an estimator asks for.

Letters: m mask, r reward of a token, R reward of a row, g its group, V value, i row, t token. `whiten` subtracts the
mean of all unmasked tokens of the batch and divides by their standard deviation.

| estimator | formula | needs | group-wise | in verl's V1 | settings |
|---|---|---|---|---|---|
"""

TAIL = """
## Where the fields come from

"""


def title_and_formula(docstring: str) -> tuple[str, list[str]]:
    """The first sentence, and the lines of the first indented block."""
    lines = docstring.splitlines()
    title = " ".join(lines[: lines.index("")] if "" in lines else lines)
    formula: list[str] = []
    for line in lines[1:]:
        if line.startswith("    "):
            formula += re.split(r" {4,}", line.strip())
        elif formula:
            break
    return title, formula


def row(name: str) -> str:
    function = ADV_ESTIMATOR_REGISTRY[name]
    title, formula = title_and_formula(inspect.getdoc(function) or "")
    parameters, fields = estimator_parameters(name), estimator_fields(name)
    required = [field for field, needed in fields.items() if needed and field in FIELDS]
    optional = [f"{field} (if there)" for field, needed in fields.items() if not needed and field in FIELDS]
    if "data" in parameters:  # its settings name what it reads
        required.append("extra_fields")
        optional.append("reward_extra_info[k] of each algorithm.gdpo_reward_keys")
    shown = [f"`{field}`" for field in required if field not in ("rm_scores", "response_mask", "uid")]
    settings = [f"`{p}`" for p in parameters if p in ("gamma", "lam", "norm_adv_by_std_in_grpo")]
    cells = [
        f"`{name}`<br>{title}",
        "<br>".join(f"`{' '.join(line.split())}`" for line in formula) or "-",
        ", ".join([*shown, *optional]) or "-",
        "yes" if "uid" in fields else "no",
        "yes" if set(required) <= V1_FETCHES else "no",
        ", ".join(settings) or "-",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def sources() -> str:
    """For every field that an estimator may need: the stage that writes it, and when."""
    before = [STAGES[name] for name in list(STAGES)[: list(STAGES).index("compute_advantage")]]
    wanted = [field for name in built_in() for field in estimator_fields(name) if field in FIELDS]
    lines = ["| field | shape | written by | when |", "|---|---|---|---|"]
    for field in dict.fromkeys([*wanted, "extra_fields"]):
        writers = [(stage, need) for stage in before for need in stage.writes if need.field == field and need.required]
        stage, when = ("compute_advantage", _when_weighted()) if not writers else _first(writers)
        lines.append(f"| `{field}` | `{FIELDS[field].shape or FIELDS[field].dtype}` | `{stage}` | {when} |")
    return "\n".join(lines) + "\n"


def _first(writers: list) -> tuple[str, str]:
    stage, need = writers[0]
    return stage.name, (stage.runs_when & need.when).text


def _when_weighted() -> str:
    return next(n.when.text for n in STAGES["compute_advantage"].writes if n.field == "rollout_is_weights")


def built_in() -> list[str]:
    """The estimators of kitlib itself, by name: readers add theirs to the same registry, in any order."""
    return sorted(n for n, function in ADV_ESTIMATOR_REGISTRY.items() if function.__module__.startswith("kitlib."))


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(row(name) for name in built_in()) + "\n" + TAIL + sources()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(built_in())} estimators")
