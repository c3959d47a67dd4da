"""The output head and the softmax over it, one slice of the vocabulary at a time.

verl 0.9.1: utils/experimental/torch_functional.py, FusedLinearForPPO, which cuts over tokens; the kernels of
utils/kernel and liger-kernel, which cut over the vocabulary as well.

With N tokens and V words the logits are N * V floats, twice that with their gradient: 32 rows of 1,000 tokens under
Qwen's 152,000 words make 20 GB. Here N * C of them exist at a time, C = VOCAB_CHUNK; backward computes each slice
again. For token i with hidden state h_i, logits z_ij = (w_j . h_i + b_j) / temperature, j over the vocabulary:

    running over the slices    m = max z      s = sum e^(z - m)      t = sum z e^(z - m)      q = sum e^(2 (z - m))
    log p_i = z_i,target - lse                      lse = m + log s
    H_i     = lse - t / s                           entropy in nats
    Q_i     = q / s^2                               sum of squared probabilities

    d log p_i / d z_ij = [j = target] - p_ij        d H_i / d z_ij = -p_ij (log p_ij + H_i)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VOCAB_CHUNK = 16_384
"""Words a slice; a vocabulary that is not larger is scored in one piece, by plain torch."""


class ChunkedScores(torch.autograd.Function):
    """(log p, H, Q) of each token, float32 [num_tokens] each; Q has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [num_tokens, hidden size], weight [vocabulary, hidden size], bias [vocabulary], target int64
        [num_tokens]."""
        top = hidden.new_full((len(hidden),), float("-inf"), dtype=_wide(hidden))  # m
        total, weighted, squares, own = (torch.zeros_like(top) for _ in range(4))
        for start in range(0, len(weight), chunk):
            z = _logits(hidden, weight, bias, temperature, start, chunk)  # [num_tokens, chunk]
            higher = torch.maximum(top, z.amax(dim=1))
            shrink = (top - higher).exp()
            exp = (z - higher[:, None]).exp()
            total = total * shrink + exp.sum(dim=1)
            weighted = weighted * shrink + torch.linalg.vecdot(exp, z)
            squares = squares * shrink**2 + torch.linalg.vecdot(exp, exp)
            row, word = _targets_in(target, start, z.shape[1])
            own[row] = z[row, word]
            top = higher
        lse = top + total.log()
        entropy = lse - weighted / total
        ctx.save_for_backward(hidden, weight, bias, target, lse, entropy)
        ctx.temperature, ctx.chunk = temperature, chunk
        squares = squares / total**2
        ctx.mark_non_differentiable(squares)
        return own - lse, entropy, squares

    @staticmethod
    def backward(ctx: Any, grad_log_prob: Tensor, grad_entropy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of hidden, weight and bias, in their own dtypes."""
        hidden, weight, bias, target, lse, entropy = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden, dtype=_wide(hidden))
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.empty_like(bias) if bias is not None else None
        for start in range(0, len(weight), ctx.chunk):
            z = _logits(hidden, weight, bias, ctx.temperature, start, ctx.chunk)
            log_p = z - lse[:, None]
            grad = -log_p.exp() * (grad_log_prob[:, None] + grad_entropy[:, None] * (log_p + entropy[:, None]))
            row, word = _targets_in(target, start, z.shape[1])
            grad[row, word] += grad_log_prob[row]
            grad = (grad / ctx.temperature).to(weight.dtype)
            words = slice(start, start + ctx.chunk)
            grad_hidden += grad @ weight[words]
            if grad_weight is not None:
                grad_weight[words] = grad.T @ hidden
            if grad_bias is not None:
                grad_bias[words] = grad.sum(dim=0)
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, start: int, chunk: int) -> Tensor:
    words = slice(start, start + chunk)
    z = torch.nn.functional.linear(hidden, weight[words], None if bias is None else bias[words])
    z = z.to(_wide(z))
    return z if temperature == 1.0 else z / temperature


def _targets_in(target: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """(row, column) of the targets that lie in this slice."""
    row = ((target >= start) & (target < start + width)).nonzero()[:, 0]
    return row, target[row] - start


def _wide(values: Tensor) -> torch.dtype:
    """float32, or float64 for values that are."""
    return torch.promote_types(values.dtype, torch.float32)
