"""Two pictures: how sure the model was along an answer, and whether server and trainer agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kitlib.lessons.score_the_tokens.scores import Agreement
from kitlib.transfer_queue import KVBatchMeta

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kitlib.trainer.base import PPOTrainer

MODEL, TOOL = "#0072b2", "#c8c8c8"


def plot_entropy(trainer: PPOTrainer, keys: Sequence[str], partition_id: str = "train") -> Figure:
    """The entropy of every response token of some rows, in nats; blue: written by the model, grey: by the tool.

    Reads responses, response_mask, entropy [R].
    """
    from matplotlib import pyplot as plt

    data = trainer.pull(
        KVBatchMeta(list(keys), [{}] * len(keys), partition_id), "responses", "response_mask", "entropy"
    )
    figure, every = plt.subplots(len(keys), 1, figsize=(9, 2.2 * len(keys)), layout="constrained", squeeze=False)
    for number, axes in enumerate(every[:, 0]):
        ids, mask, entropy = (
            data[name].unbind()[number].tolist() for name in ("responses", "response_mask", "entropy")
        )
        axes.bar(range(len(ids)), entropy, color=[MODEL if kept else TOOL for kept in mask])
        words = [_word(trainer.tokenizer, token_id) for token_id in ids]
        axes.set_xticks(range(len(ids)), words, rotation=60, ha="right", fontsize=8)
        axes.set_ylabel("entropy")
        axes.set_ylim(0, 2.6)
    plt.close(figure)
    return figure


def _word(tokenizer: Any, token_id: int) -> str:
    """A token as a label: matplotlib would read $ as mathematics, and a line break breaks the label."""
    return tokenizer.decode([token_id]).replace("\n", "\\n").replace("$", r"\$")


def plot_agreement(cases: Mapping[str, Agreement]) -> Figure:
    """One point a token of the model: the probability that the server reported and the one of the trainer."""
    from matplotlib import pyplot as plt

    figure, every = plt.subplots(
        1, len(cases), figsize=(3.4 * len(cases), 3.5), layout="constrained", sharey=True, squeeze=False
    )
    for axes, (label, case) in zip(every[0], cases.items(), strict=True):
        mask = case.response_mask.bool()
        axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
        axes.scatter(case.rollout_log_probs[mask].exp(), case.old_log_probs[mask].exp(), s=9, color=MODEL)
        axes.set_title(
            f"{label}\nmean difference {case.numbers()['training/rollout_probs_diff_mean']:.1e}", fontsize=10
        )
        axes.set_xlabel("server")
    every[0, 0].set_ylabel("trainer")
    plt.close(figure)
    return figure
