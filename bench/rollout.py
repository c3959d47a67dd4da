"""What the transformers server makes of a model, beside model.generate at the same shapes.

    python bench/rollout.py [--device cpu|cuda] [--threads 1] [--repeats 6]

The model has the architecture of the shipped checkpoints and random weights, sampling is at temperature 1, no token
ends a request. Only the tokens a request asked for count: model.generate decodes every row to the longest one of the
batch. The server also returns log-probabilities, model.generate does not. Both sides take turns; the table gives the
best time of each, on a CPU in seconds of the processor (all threads), so that a busy machine matters less.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from kitlib.rollout import SamplingParams, TransformersServer
from kitlib.rollout.engine import DecodingEngine
from kitlib.rollout.slot_table import Request

NUM_ROWS, PROMPT_LENGTH, VOCAB_SIZE = 128, 15, 64


@dataclass(frozen=True)
class Workload:
    """`turns`: for each turn the tokens asked of each row and the tokens the world adds before it."""

    name: str
    num_prompts: int
    turns: tuple[tuple[tuple[int, ...], int], ...]

    @property
    def num_tokens(self) -> int:
        return sum(sum(asked) for asked, _ in self.turns)

    def prompts(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        distinct = torch.randint(0, VOCAB_SIZE, (self.num_prompts, PROMPT_LENGTH), generator=generator).tolist()
        return [distinct[i * self.num_prompts // NUM_ROWS] for i in range(NUM_ROWS)]


def workloads() -> list[Workload]:
    long_tail = tuple(np.random.default_rng(0).geometric(0.05, NUM_ROWS).clip(1, 100).tolist())
    return [
        Workload("6 tokens, 16 prompts x 8", 16, (((6,) * NUM_ROWS, 0),)),
        Workload("6 tokens, 128 prompts", NUM_ROWS, (((6,) * NUM_ROWS, 0),)),
        Workload("8 + 7 tokens in two turns, 16 x 8", 16, (((8,) * NUM_ROWS, 0), ((7,) * NUM_ROWS, 6))),
        Workload("32 tokens, 16 x 8", 16, (((32,) * NUM_ROWS, 0),)),
        Workload(f"1 to {max(long_tail)} tokens, 16 x 8", 16, ((long_tail, 0),)),
    ]


def run_server(server: TransformersServer, workload: Workload, run: int) -> None:
    async def session(row: int, prompt: list[int]) -> None:
        tokens = list(prompt)
        for asked, added in workload.turns:
            tokens += [1] * added
            params = {"temperature": 1.0, "logprobs": True, "max_tokens": asked[row]}
            tokens += (await server.generate(tokens, params, f"{run}-{row}")).token_ids

    async def main() -> None:
        await asyncio.gather(*(session(row, prompt) for row, prompt in enumerate(workload.prompts())))

    asyncio.run(main())


def run_generate(model: Any, workload: Workload) -> None:
    tokens = torch.tensor(workload.prompts(), device=model.device)
    for asked, added in workload.turns:
        tokens = torch.cat([tokens, tokens.new_ones(NUM_ROWS, added)], dim=1)
        tokens = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            top_k=0,
            max_new_tokens=max(asked),
            pad_token_id=0,
        )


class Timer:
    """Best seconds of each named action."""

    def __init__(self, device: str) -> None:
        self.clock = time.perf_counter if device == "cuda" else time.process_time
        self.device = device
        self.best: dict[str, float] = {}

    def measure(self, name: str, action: Callable[[], None]) -> None:
        began = self.clock()
        action()
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.best[name] = min(self.best.get(name, float("inf")), self.clock() - began)


def compare(server: TransformersServer, model: Any, workload: Workload, device: str, repeats: int) -> list[str]:
    timer = Timer(device)
    for repeat in range(-1, repeats):  # -1 warms up
        if repeat == 0:
            timer.best.clear()
        timer.measure("server", lambda run=repeat: run_server(server, workload, run))
        timer.measure("generate", lambda: run_generate(model, workload))
    speeds = {name: workload.num_tokens / seconds for name, seconds in timer.best.items()}
    ratio = speeds["server"] / speeds["generate"]
    return [workload.name, f"{speeds['server']:,.0f}", f"{speeds['generate']:,.0f}", f"{ratio:.2f}"]


@torch.inference_mode()
def step_beside_forward(model: Any, device: str, repeats: int) -> tuple[float, float]:
    """Seconds of one decode step of the engine over 128 rows, and of the model's forward in it."""
    engine = DecodingEngine(model, [], max_model_len=256, max_num_seqs=NUM_ROWS)
    forward, timer = engine.runner.forward, Timer(device)
    logits: list[torch.Tensor] = []

    def timed_forward(*args: Any) -> torch.Tensor:
        timer.measure("forward", lambda: logits.append(forward(*args)))
        return logits.pop()

    engine.runner.forward = timed_forward  # type: ignore[method-assign]
    prompt = np.arange(PROMPT_LENGTH, dtype=np.int64)
    for row in range(NUM_ROWS):
        engine.add(Request(str(row), prompt, SamplingParams(logprobs=True), 200, row))
    engine.step()
    timer.best.clear()
    for _ in range(max(20, 10 * repeats)):
        timer.measure("step", engine.step)
        engine._table.length[:NUM_ROWS] -= 1  # the same length each time
    return timer.best["step"], timer.best["forward"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = tiny_model().to(args.device)
    server = TransformersServer(copy.deepcopy(model), None, max_model_len=256)
    table = Table("128 rows, prompts of 15 tokens", "server tok/s", "generate tok/s", "ratio")
    for workload in workloads():
        table.add_row(*compare(server, model, workload, args.device, args.repeats))
    server.close()
    step, forward = step_beside_forward(model, args.device, args.repeats)
    console = Console(width=110)
    console.print(table)
    console.print(f"a decode step of the engine: {step * 1e3:.2f} ms, the model's forward in it {forward * 1e3:.2f} ms")


def tiny_model() -> Any:
    """The architecture of the shipped checkpoints, random weights, no token that ends a request."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True, "max_position_embeddings": 512}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCAB_SIZE, **sizes, **more)).eval()
    model.generation_config.eos_token_id = None
    return model


if __name__ == "__main__":
    main()
