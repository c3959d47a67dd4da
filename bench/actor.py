"""What the actor costs beside a bare forward and backward of the same model at the same shape.

    python bench/actor.py [--device cpu|cuda] [--threads 1] [--repeats 10] [--peak-tflops 989]

Rows have random tokens; lengths as in the shipped tasks. "152k words" is the same tiny model under the vocabulary of
Qwen; on a GPU a model of the shape of Qwen2.5-0.5B is measured too, with random weights. "bare" runs the Hugging Face
model on one padded batch: forward without gradient beside compute_log_prob; forward, cross-entropy on response tokens,
backward, clip and fused AdamW beside update_actor. Both sides take turns; the first table gives the best time of each,
on a CPU in milliseconds of the processor, so that a busy machine matters less. The second one gives the memory that a
call needs at its peak on top of what was there before: of the process on a CPU (Linux), of the tensors on a GPU; and on
a GPU the share of --peak-tflops that an update reaches (6 FLOPs a token and weight, MFU).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
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


LARGE_VOCABULARY = 151_936  # that of Qwen2.5


def half_billion_model() -> Any:
    """The shape of Qwen2.5-0.5B, random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    more = {"num_key_value_heads": 2, "tie_word_embeddings": True, "max_position_embeddings": 4096}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=LARGE_VOCABULARY, **sizes, **more))


def tiny_model(vocab_size: int = 64) -> Any:
    """The architecture of the shipped checkpoints, random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True, "max_position_embeddings": 512}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=vocab_size, **sizes, **more))


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

    def __init__(self, model: Any, data: TensorDict, device: torch.device) -> None:
        self.model = model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.0, fused=True)
        self.input_ids = padded(data["input_ids"]).to(device)
        self.first = data["prompts"].offsets().diff()[0].item() - 1

    def forward(self) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.input_ids.is_cuda):
            return self._loss()

    def _loss(self) -> Tensor:
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


def peak_megabytes(call: Callable[[], Any], device: torch.device) -> float:
    """Memory that a call needs at its peak, on top of what is in use before it; NaN where nobody can tell."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    marks = Path("/proc/self/clear_refs")
    if not marks.exists():
        return float("nan")
    ctypes.CDLL(None).malloc_trim(0)
    marks.write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 2**10


def _status(name: str) -> int:
    """A line of /proc/self/status, in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


CALLS = ("bare forward", "compute_log_prob", "bare update", "update_actor")


def measure(
    make_model: Callable[[], Any],
    shape: tuple[int, int, int, int],
    cut: tuple[str, ...],
    repeats: int,
    device: torch.device,
) -> dict[str, Any]:
    data = make_batch(*shape)
    bare = Bare(make_model(), data, device)
    config = load_config([f"actor_rollout_ref.{override}" for override in cut])
    worker = ActorRolloutRefWorker(config, make_model(), device)
    functions = (bare.infer, lambda: worker.compute_log_prob(data), bare.update, lambda: worker.update_actor(data))
    calls = dict(zip(CALLS, functions, strict=True))
    times = best_times(calls, repeats, device)
    peaks = {name: peak_megabytes(call, device) for name, call in calls.items()}
    num_weights = sum(p.numel() for p in bare.model.parameters())
    worker.close()
    return {"times": times, "peaks": peaks, "tokens": len(data["input_ids"].values()), "weights": num_weights}


def cases(device: str) -> list[tuple[str, str, Callable[[], Any], tuple[int, int, int, int], tuple[str, ...]]]:
    """(model and shape, micro-batch, model, shape, overrides)."""
    found = [(f"{name}", cut, tiny_model, SHAPES[name], CUTS[cut]) for name in SHAPES for cut in CUTS]
    rows = ("actor.ppo_micro_batch_size_per_gpu=16", "rollout.log_prob_micro_batch_size_per_gpu=16")
    found.append(("152k words", "all rows", lambda: tiny_model(LARGE_VOCABULARY), (16, 15, 30, 60), rows))
    if device.startswith("cuda"):
        found.append(("0.5B weights", "16 rows", half_billion_model, (64, 256, 256, 768), rows))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="of the GPU in bfloat16 (H100, H200: 989)")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    where = f"{args.device}, {args.threads} thread(s), torch {torch.__version__}"
    names = ("bare fwd", "log_prob", "ratio", "bare update", "update", "ratio")
    times = Table("shape", "micro-batch", "tokens", *names, "tokens/s", title=f"milliseconds, {where}")
    peaks = Table("shape", "micro-batch", *names, "MFU", title=f"peak memory of a call, MB, {where}")
    for name, cut, make_model, shape, overrides in cases(args.device):
        if args.only not in name:
            continue
        row = measure(make_model, shape, overrides, args.repeats, torch.device(args.device))
        seconds = row["times"]["compute_log_prob"] + row["times"]["update_actor"]
        times.add_row(name, cut, f"{row['tokens']:,}", *_pairs(row["times"], 1e3), f"{row['tokens'] / seconds:,.0f}")
        flops = 6 * row["weights"] * row["tokens"] / row["times"]["update_actor"]
        mfu = f"{flops / args.peak_tflops / 1e12:.1%}" if args.device.startswith("cuda") else "-"
        peaks.add_row(name, cut, *_pairs(row["peaks"], 1), mfu)
    for table in (times, peaks):
        Console(width=110).print(table)


def _pairs(values: dict[str, float], scale: float) -> list[str]:
    """Bare, ours and their ratio, twice."""
    cells = []
    for bare, ours in (CALLS[:2], CALLS[2:]):
        ratio = values[ours] / values[bare] if values[bare] else float("nan")
        cells += [f"{scale * values[bare]:.0f}", f"{scale * values[ours]:.0f}", f"{ratio:.2f}"]
    return cells


if __name__ == "__main__":
    main()
