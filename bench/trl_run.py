"""TRL's GRPOTrainer on the shipped addition task; started by against_trl.py with the Python of an environment that
has trl.

Same model, tokenizer, rows, batch (16 prompts x 8), learning rate, clip range and lengths as `kitlib run` in
against_trl.py; no KL term, fp32. Prints one JSON object: samples a second (the first steps left out) and held-out
accuracy, sampled and greedy."""

from __future__ import annotations

import argparse
import json
import re
import time

import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

WARM_UP = 5


class StepTimes(TrainerCallback):
    """Wall-clock seconds of each step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.marks.append(time.perf_counter())


def correct(text: str, truth: str) -> float:
    found = re.search(r"-?\d+", text.replace(" ", ""))
    return float(found is not None and found.group() == truth)


def reward(completions, ground_truth, **kwargs):
    return [
        correct(completion[0]["content"], truth) for completion, truth in zip(completions, ground_truth, strict=True)
    ]


@torch.no_grad()
def accuracy(model, tokenizer, rows, max_new_tokens: int, do_sample: bool) -> float:
    texts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in rows]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if do_sample else {"do_sample": False}
    out = model.generate(**inputs, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id, **sampling)
    answers = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(correct(a, row["reward_model"]["ground_truth"]) for a, row in zip(answers, rows, strict=True)) / len(
        rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--lr-scheduler", default="constant")
    parser.add_argument("--max-new-tokens", type=int, default=8)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(f"{args.data}/models/add", padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(f"{args.data}/models/add", dtype=torch.float32)
    train, val = (pq.read_table(f"{args.data}/add/{split}.parquet").to_pylist() for split in ("train", "val"))
    dataset = Dataset.from_list(
        [{"prompt": r["prompt"], "ground_truth": r["reward_model"]["ground_truth"]} for r in train]
    )
    times = StepTimes()
    config = GRPOConfig(
        output_dir="/tmp/trl_bench",
        per_device_train_batch_size=128,
        num_generations=8,
        max_completion_length=args.max_new_tokens,
        max_steps=args.steps,
        learning_rate=args.lr,
        lr_scheduler_type=args.lr_scheduler,
        temperature=1.0,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        seed=args.seed,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        args=config,
        train_dataset=dataset,
        callbacks=[times],
    )
    trainer.train()
    torch.manual_seed(1000)
    model.eval()
    rows = val * 8
    result = {
        "samples_per_s": 128 * (len(times.marks) - 1 - WARM_UP) / (times.marks[-1] - times.marks[WARM_UP]),
        "sampled": accuracy(model, tokenizer, rows, args.max_new_tokens, True),
        "greedy": accuracy(model, tokenizer, val, args.max_new_tokens, False),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
