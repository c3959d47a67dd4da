"""Checks of predictions about scores: the truth comes from torch and from kitlib.workers, the mistake is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kitlib.lessons.answers import Answer, mistakes, open_answer, right, unanswered
from kitlib.lessons.plain_checks import check_number
from kitlib.lessons.reading import whole_numbers_of
from kitlib.transfer_queue import jagged
from kitlib.workers.balance import calculate_workload, get_seqlen_balanced_partitions
from kitlib.workers.padding import response_from_nested


def check_log_prob(answer: Any, logits: Sequence[float], word: int, temperature: float = 1.0) -> Answer:
    """The log-probability of `word` when the logits are divided by `temperature`."""
    z = torch.tensor(logits, dtype=torch.float64)
    truth = float((z / temperature).log_softmax(0)[word])
    plain, wrong = z.log_softmax(0), {}
    wrong[truth / 2.302585] = "that is the logarithm to base 10: take the natural one"
    wrong[float(z[word])] = "that is the logit: a log-probability comes after the softmax"
    wrong[float(z[word]) / temperature] = "that is the logit over the temperature: now take the log of the softmax"
    wrong[float((z * temperature).log_softmax(0)[word])] = "you multiplied by the temperature: divide"
    wrong[float(plain[word]) / temperature] = "you divided the log-probability: divide the logits, before the softmax"
    wrong[float(plain[word])] = "that is for temperature 1: divide the logits first"
    wrong[float((z / temperature).softmax(0)[word])] = "that is the probability: take its logarithm"
    return check_number(answer, truth, wrong, tolerance=0.006, right=f"log p = {truth:.3f}")


def check_positions(answer: Any, prompt_len: int, response_len: int) -> Answer:
    """Which positions of a whole-sequence column belong to the response? `answer` lists them, counted from 0."""
    if unanswered(answer):
        return open_answer()
    said, num_tokens = whole_numbers_of(answer), prompt_len + response_len
    if said is None:
        return mistakes([f"the answer is a list of positions such as [0, 1], not {answer!r}"])
    cut = response_from_nested(jagged([torch.arange(num_tokens)]), jagged([torch.ones(response_len)]))
    truth = cut.unbind()[0].tolist()
    if said == truth:
        return right(f"positions {truth[0]} to {truth[-1]}: position t scores token t + 1")
    return mistakes([_wrong_positions(said, truth, num_tokens)])


def _wrong_positions(said: list[int], truth: list[int], num_tokens: int) -> str:
    if said == [position + 1 for position in truth]:
        return "these are the places of the response tokens: position t scores token t + 1, so go one to the left"
    if said == list(range(num_tokens)):
        return "that is the whole sequence, prompt included"
    if num_tokens - 1 in said:
        return f"position {num_tokens - 1} scores a token after the end: it means nothing"
    if len(said) != len(truth):
        return f"the response has {len(truth)} tokens, so there are {len(truth)} positions, not {len(said)}"
    if said == truth[::-1]:
        return "in the order of the tokens, please"
    return "which position looks at everything before the first response token, and at nothing after that?"


def check_ranks(answer: Any, seq_lens: Sequence[int], num_ranks: int) -> Answer:
    """Which rows go to which rank, so that every rank has equal work? One list of row numbers a rank, in any order."""
    ranks = answer.tolist() if hasattr(answer, "tolist") else answer
    if unanswered(ranks):
        return open_answer()
    if not isinstance(ranks, list | tuple | set) or not all(hasattr(rows, "__len__") for rows in ranks):
        return mistakes([f"the answer is one list of row numbers for each rank, not {answer!r}"])
    numbers = [whole_numbers_of(rows) for rows in ranks]
    said = [sorted(rows) for rows in numbers if rows is not None]
    if len(said) < len(numbers):
        return mistakes([f"row numbers are whole numbers, counted from 0, not {answer!r}"])
    truth = get_seqlen_balanced_partitions(calculate_workload(seq_lens), num_ranks, equal_size=True)
    if sorted(said) == sorted(truth):
        tokens = [sum(seq_lens[row] for row in rows) for rows in said]
        return right(f"the ranks get {' and '.join(map(str, tokens))} tokens")
    return mistakes(list(_wrong_ranks(said, seq_lens, num_ranks))[:1])


def _wrong_ranks(said: list[list[int]], seq_lens: Sequence[int], num_ranks: int) -> Iterator[str]:
    rows = [row for one in said for row in one]
    if len(said) != num_ranks:
        yield f"there are {num_ranks} ranks, and you filled {len(said)}"
    if sorted(rows) == sorted(seq_lens) and sorted(rows) != list(range(len(seq_lens))):
        yield "these are lengths: give the numbers of the rows, counted from 0"
    if sorted(rows) != list(range(len(seq_lens))):
        yield f"every row from 0 to {len(seq_lens) - 1} goes to exactly one rank"
        return
    if len({len(one) for one in said}) > 1:
        yield "every rank gets the same number of rows"
    tokens = [sum(seq_lens[row] for row in one) for one in said]
    together = " and ".join(map(str, tokens))
    if rows == sorted(rows):
        yield f"that is the order in which the rows came: {together} tokens. Mix long rows with short ones"
    yield f"{together} tokens: it can be more even"
