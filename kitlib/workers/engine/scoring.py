"""Scores of chosen tokens, without logits for any other position: log-probability and entropy, or a value.

verl 0.9.1: workers/engine/fsdp/transformer_impl.py, prepare_model_outputs; utils/torch_functional.py,
logprobs_from_logits, entropy_from_logits and calculate_sum_pi_squared_from_logits. Left out: multimodal inputs.

The output head is by far the widest layer of a language model, and only response tokens are ever read. A hook in
front of the head hands it the chosen positions alone; what a model does to its logits afterwards (soft caps, scales)
still happens, so any causal language model of transformers works. A vocabulary larger than VOCAB_CHUNK is scored slice
by slice inside the head, so that full logits never exist (chunked_head.py), unless the model does something to its
logits afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kitlib.workers.engine.chunked_head import VOCAB_CHUNK, ChunkedScores
from kitlib.workers.errors import WorkerError
from kitlib.workers.rows import Rows


@dataclass(frozen=True)
class TokenScores:
    """Scores of the chosen tokens, in the order of `Rows.positions`."""

    log_probs: Tensor
    """float32 [num_chosen]."""
    entropy: Tensor | None = None
    """float32 [num_chosen], in nats; None if it was not asked for."""
    sum_pi_squared: Tensor | None = None
    """Sum of the squared probabilities of all words, float32 [num_chosen], without gradient; None if not asked for."""

    def columns(self) -> dict[str, Tensor]:
        """What was asked for, by the name of the field it becomes."""
        found = {"log_probs": self.log_probs, "entropy": self.entropy, "sum_pi_squared": self.sum_pi_squared}
        return {name: values for name, values in found.items() if values is not None}


class TokenScorer:
    """Scores tokens with a model whose output head sees only the chosen positions.

    Args:
        model: a causal language model, not yet sharded.
        vocab_chunk: words a slice; a vocabulary that is not larger is scored in one piece.
    """

    def __init__(self, model: nn.Module, vocab_chunk: int = VOCAB_CHUNK) -> None:
        self._model = model
        self._vocab_chunk = vocab_chunk
        self._chosen: Tensor | None = None  # positions in the flattened [num_rows * max S], while a forward runs
        self._target: Tensor | None = None  # the words at the chosen positions, int64 [num_chosen]
        self._temperature = 1.0
        head = model.get_output_embeddings()  # type: ignore[operator]
        if head is None:
            raise WorkerError(f"{type(model).__name__} has no output embeddings: it is not a causal language model")
        self.is_chunked = isinstance(head, nn.Linear) and len(head.weight) > vocab_chunk and _ends_with(model, head)
        if self.is_chunked:
            self._plain_head = head.forward
            head.forward = lambda hidden: self._score_in_head(head, hidden)  # type: ignore[method-assign]
        else:
            head.register_forward_pre_hook(self._choose)

    def __call__(
        self, rows: Rows, chosen: Tensor, temperature: float, with_entropy: bool, with_sum_pi_squared: bool = False
    ) -> TokenScores:
        """Score the `chosen` response tokens, bool [num_rows, max R].

        log p(x_{t+1} | x_{<=t}) = log softmax(logits_t / temperature)[x_{t+1}]
        """
        input_ids = rows.sequence["input_ids"]  # [num_rows, max S]
        row, position = rows.positions(chosen)
        self._chosen = row * input_ids.shape[1] + position
        self._target, self._temperature = input_ids[row, position + 1], temperature
        try:
            logits = self._model(**rows.sequence, use_cache=False).logits[0]  # [num_chosen, vocab], or scores
            if self.is_chunked:
                log_probs, entropy, squares = logits.unbind(dim=1)
            else:
                log_probs, entropy, squares = self._scores_of(logits.float(), with_entropy, with_sum_pi_squared)
        finally:
            self._chosen = self._target = None
        return TokenScores(log_probs, entropy if with_entropy else None, squares if with_sum_pi_squared else None)

    def _choose(self, head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor] | None:
        if self._chosen is None:
            return None
        hidden = inputs[0]  # [num_rows, max S, hidden]
        return (hidden.flatten(0, 1)[self._chosen].unsqueeze(0),)  # [1, num_chosen, hidden]

    def _score_in_head(self, head: nn.Linear, hidden: Tensor) -> Tensor:
        """The scores in place of logits, [1, num_chosen, 3].

        Here and not after the model: FSDP frees the weight of the head when the model returns, and what the model
        returns tells FSDP when to gather it again for backward.
        """
        if self._chosen is None or self._target is None:
            return self._plain_head(hidden)
        scores = ChunkedScores.apply(
            hidden.flatten(0, 1)[self._chosen],
            head.weight,
            head.bias,
            self._target,
            self._temperature,
            self._vocab_chunk,
        )
        return torch.stack([values[None] for values in scores], dim=-1)  # FSDP wants no view

    def _scores_of(
        self, logits: Tensor, with_entropy: bool, with_sum_pi_squared: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        assert self._target is not None
        if self._temperature != 1.0:
            logits = logits / self._temperature
        log_probs = -nn.functional.cross_entropy(logits, self._target, reduction="none")
        entropy = entropy_from_logits(logits) if with_entropy else None
        return log_probs, entropy, logits.detach().softmax(-1).square().sum(-1) if with_sum_pi_squared else None


@torch.no_grad()
def _ends_with(model: nn.Module, head: nn.Linear) -> bool:
    """Whether the logits of a model are what its head gives: no cap and no scale in between. Tried with a few words:
    one alone may have an embedding of zeros, as a padding word has."""
    given: list[Tensor] = []
    handle = head.register_forward_hook(lambda module, inputs, output: given.append(output))
    was_training = model.training
    try:
        words = torch.linspace(1, len(head.weight) - 1, steps=8, device=head.weight.device).long()
        logits = model.eval()(input_ids=words[None], use_cache=False).logits
    finally:
        handle.remove()
        model.train(was_training)
    return len(given) == 1 and torch.equal(given[0], logits)


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
