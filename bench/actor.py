"""What the actor costs beside a bare forward and backward of the same model at the same shape.

    python bench/actor.py [--device cpu|cuda] [--threads 1] [--repeats 10]

Rows have random tokens; lengths as in the shipped tasks. "bare" runs the Hugging Face model on one padded batch:
forward without gradient beside compute_log_prob; forward, cross-entropy on response tokens, backward, clip and fused
AdamW beside update_actor. Both sides take turns; the table gives the best time of each, on a CPU in milliseconds of the
processor, so that a busy machine matters less.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict
from torch import Tensor

from kitlib.config import load_config
from kitlib.transfer_queue import jagged, padded
from kitlib.workers.actor import ActorRolloutRefWorker

# name: (rows, prompt tokens, shortest and longest response)
CUTS = {
    "all rows": ("actor.ppo_micro_batch_size_per_gpu=128", "rollout.log_prob_micro_batch_size_per_gpu=128"),
    "32 rows": ("actor.ppo_micro_batch_size_per_gpu=32", "rollout.log_prob_micro_batch_size_per_gpu=32"),
    "2048 tokens": ("actor.use_dynamic_bsz=true", "actor.ppo_max_token_len_per_gpu=2048"),
}
SHAPES = {"add": (128, 15, 6, 6), "mult_tool": (128, 15, 10, 35), "sum_tool": (128, 21, 12, 140)}


def tiny_model() -> Any:
    """The architecture of the shipped checkpoints, random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True, "max_position_embeddings": 512}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=64, **sizes, **more))


def make_batch(num_rows: int, prompt_len: int, shortest: int, longest: int) -> TensorDict:
    generator = torch.Generator().manual_seed(0)
    response_lens = torch.randint(shortest, longest + 1, (num_rows,), generator=generator).tolist()
    rows = []
    for response_len in response_lens:
        input_ids = torch.randint(0, 64, (prompt_len + response_len,), generator=generator)
        ones = torch.ones(response_len)
        tokens = {"input_ids": input_ids, "position_ids": torch.arange(len(input_ids))}
        parts = {"prompts": input_ids[:prompt_len], "responses": input_ids[prompt_len:]}
        masks = {"response_mask": ones.long(), "loss_mask": ones.long()}
        rows.append({**tokens, **parts, **masks, "old_log_probs": -4 * ones, "advantages": ones})
    data = TensorDict({name: jagged([row[name] for row in rows]) for name in rows[0]}, batch_size=[num_rows])
    settings = {"mini_batch_size": num_rows, "global_batch_size": num_rows, "epochs": 1, "seed": 0, "temperature": 1.0}
    for name, value in {**settings, "dataloader_kwargs": {"shuffle": False}, "calculate_entropy": False}.items():
        data.set_non_tensor(name, value)
    return data


class Bare:
    """The same work without anything of kitlib."""

    def __init__(self, data: TensorDict, device: torch.device) -> None:
        self.model = tiny_model().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.0, fused=True)
        self.input_ids = padded(data["input_ids"]).to(device)
        self.first = data["prompts"].offsets().diff()[0].item() - 1

    def forward(self) -> Tensor:
        logits = self.model(input_ids=self.input_ids, use_cache=False).logits[:, self.first : -1]
        labels = self.input_ids[:, self.first + 1 :]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def infer(self) -> None:
        with torch.no_grad():
            self.forward()

    def update(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.forward().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def best_times(calls: dict[str, Callable[[], Any]], repeats: int, device: torch.device) -> dict[str, float]:
    """Shortest seconds of each call, of the processor on a CPU; the calls take turns."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):  # the first round warms up
        for name, call in calls.items():
            start = clock()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append(clock() - start)
    return {name: min(values[1:]) for name, values in times.items()}


def measure(
    shape: tuple[int, int, int, int], cut: tuple[str, ...], repeats: int, device: torch.device
) -> dict[str, float]:
    data = make_batch(*shape)
    bare = Bare(data, device)
    config = load_config([f"actor_rollout_ref.{override}" for override in cut])
    worker = ActorRolloutRefWorker(config, tiny_model(), device)
    calls = {
        "bare forward": bare.infer,
        "compute_log_prob": lambda: worker.compute_log_prob(data),
        "bare update": bare.update,
        "update_actor": lambda: worker.update_actor(data),
    }
    times = best_times(calls, repeats, device)
    worker.close()
    return {**times, "num_tokens": len(data["input_ids"].values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    table = Table(
        "shape", "micro-batch", "tokens", "bare fwd", "log_prob", "ratio", "bare update", "update", "ratio", "tokens/s"
    )
    table.title = f"milliseconds, {args.device}, {args.threads} thread(s), torch {torch.__version__}"
    for name, shape in SHAPES.items():
        for cut, overrides in CUTS.items():
            row = measure(shape, overrides, args.repeats, torch.device(args.device))
            cells = [name, cut, f"{row['num_tokens']:,}"]
            for bare, ours in (("bare forward", "compute_log_prob"), ("bare update", "update_actor")):
                cells += [f"{1e3 * row[bare]:.0f}", f"{1e3 * row[ours]:.0f}", f"{row[ours] / row[bare]:.2f}"]
            table.add_row(*cells, f"{row['num_tokens'] / (row['compute_log_prob'] + row['update_actor']):,.0f}")
    console = Console(width=110)
    console.print(table)
    console.print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
