"""Log-probability and entropy of chosen tokens, without logits for any other position.

verl 0.9.1: workers/engine/fsdp/transformer_impl.py, prepare_model_outputs; utils/torch_functional.py,
logprobs_from_logits and entropy_from_logits. Left out: logits chunked over the vocabulary, sum of squared
probabilities, multimodal inputs.

The output head is by far the widest layer of a language model, and only response tokens are ever read. A hook in
front of the head hands it the chosen positions alone; what a model does to its logits afterwards (soft caps, scales)
still happens, so any causal language model of transformers works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kitlib.workers.errors import WorkerError
from kitlib.workers.rows import Rows


@dataclass(frozen=True)
class TokenScores:
    """Scores of the chosen tokens, in the order of `Rows.positions`."""

    log_probs: Tensor
    """float32 [num_chosen]."""
    entropy: Tensor | None
    """float32 [num_chosen], in nats; None if it was not asked for."""

    def columns(self) -> dict[str, Tensor]:
        """What was asked for, by the name of the field it becomes."""
        found = {"log_probs": self.log_probs, "entropy": self.entropy}
        return {name: values for name, values in found.items() if values is not None}


class TokenScorer:
    """Scores tokens with a model whose output head sees only the chosen positions."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._chosen: Tensor | None = None  # positions in the flattened [num_rows * max S], while a forward runs
        head = model.get_output_embeddings()  # type: ignore[operator]
        if head is None:
            raise WorkerError(f"{type(model).__name__} has no output embeddings: it is not a causal language model")
        head.register_forward_pre_hook(self._choose)

    def _choose(self, head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor] | None:
        if self._chosen is None:
            return None
        hidden = inputs[0]  # [num_rows, max S, hidden]
        return (hidden.flatten(0, 1)[self._chosen].unsqueeze(0),)  # [1, num_chosen, hidden]

    def __call__(self, rows: Rows, chosen: Tensor, temperature: float, with_entropy: bool) -> TokenScores:
        """Score the `chosen` response tokens, bool [num_rows, max R].

        log p(x_{t+1} | x_{<=t}) = log softmax(logits_t / temperature)[x_{t+1}]
        """
        input_ids = rows.sequence["input_ids"]  # [num_rows, max S]
        row, position = rows.positions(chosen)
        self._chosen = row * input_ids.shape[1] + position
        try:
            output = self._model(**rows.sequence, use_cache=False)
        finally:
            self._chosen = None
        logits = output.logits[0].float()  # [num_chosen, vocab]
        if temperature != 1.0:
            logits = logits / temperature
        log_probs = -nn.functional.cross_entropy(logits, input_ids[row, position + 1], reduction="none")
        return TokenScores(log_probs, entropy_from_logits(logits) if with_entropy else None)


def entropy_from_logits(logits: Tensor) -> Tensor:
    """H = log sum exp(z) - sum softmax(z) z over the last dimension, in nats."""
    return torch.logsumexp(logits, dim=-1) - (logits.softmax(dim=-1) * logits).sum(dim=-1)


class ValueScorer:
    """Reads the one number a position that a token classifier with one label gives."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        if getattr(model, "num_labels", None) != 1:
            raise WorkerError(f"{type(model).__name__} has no head of width 1: load it with load_value_model")
        model.register_forward_hook(self._detach_from_head)

    @staticmethod
    def _detach_from_head(model: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        """FSDP2 warns about an output that is a view of something else, as a linear layer's is."""
        output.logits = output.logits.clone()
        return output

    def __call__(self, rows: Rows, chosen: Tensor) -> Tensor:
        """The value before each `chosen` response token, bool [num_rows, max R]: float32 [num_chosen]."""
        row, position = rows.positions(chosen)
        logits = self._model(**rows.sequence, use_cache=False).logits  # [num_rows, max S, 1]
        return logits[row, position, 0].float()
