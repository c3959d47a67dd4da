"""Around the scoring of sessions: take them out of the queue, score them again, mix their rewards up."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from kitlib.agent_loop import AgentLoopOutput
from kitlib.keys import is_trajectory_key, uid_of
from kitlib.lessons.faults.fault import Fault, FaultError, save
from kitlib.lessons.faults.fields import rows_of
from kitlib.lessons.faults.judges import some_keys
from kitlib.models import load_tokenizer
from kitlib.reward import RewardLoopWorker
from kitlib.reward.sandbox import SandboxError, namespaces
from kitlib.transfer_queue import KVBatchMeta, QueueProtocol
from kitlib.workers.bridge import partition_of

COLUMNS = ("data_source", "reward_model", "extra_info", "raw_prompt", "uid", "session_id", "num_turns")


def rows_there(tq: QueueProtocol, partition_id: str = "train") -> KVBatchMeta:
    """A handle of all rows of the partition, as `sample` would give it. Takes nothing: the markers stay."""
    listing = tq.kv_list(partition_id)[partition_id]
    keys = [key for key in listing if is_trajectory_key(key)]
    return KVBatchMeta(keys=keys, tags=[listing[key] for key in keys], partition_id=partition_id)


def texts_of(tq: QueueProtocol, batch: KVBatchMeta, tokenizer: Any) -> dict[str, str]:
    """{key: the text that a reward function gets}: the response, without special tokens."""
    return {
        key: tokenizer.decode(ids, skip_special_tokens=True) for key, ids in rows_of(tq, batch, "responses").items()
    }


def session_of(
    tq: QueueProtocol, key: str, partition_id: str = "train"
) -> tuple[list[AgentLoopOutput], dict[str, Any]]:
    """One row of the queue as the agent loop hands it to a RewardLoopWorker: outputs, and the row of the data set."""
    data = tq.kv_batch_get([key], partition_id, ["prompts", "responses", "response_mask", *COLUMNS])
    prompt_ids, response_ids, mask = (
        data[name].unbind()[0].tolist() for name in ("prompts", "responses", "response_mask")
    )
    row = {name: data.get(name).tolist()[0] for name in COLUMNS}
    num_turns = row.pop("num_turns")
    return [AgentLoopOutput(prompt_ids, response_ids, mask, num_turns=num_turns)], row


async def rescore(tq: QueueProtocol, batch: KVBatchMeta, worker: RewardLoopWorker) -> dict[str, float]:
    """Score every row again with `worker` and overwrite `rm_scores` and `extra_fields`. Returns {key: score}."""
    home, scores = partition_of(batch), {}
    for key in batch.keys:
        scores[key], info = await worker.compute_score(*session_of(tq, key, home))
        old = tq.kv_batch_get([key], home, ["rm_scores", "extra_fields"])
        rm_scores = torch.zeros_like(old["rm_scores"].unbind()[0])
        rm_scores[-1] = scores[key]
        extra_fields = {**old.get("extra_fields").tolist()[0], "reward_extra_info": info}
        tq.kv_put(key, home, fields={"rm_scores": rm_scores, "extra_fields": extra_fields})
    return scores


def swap_rewards(tq: QueueProtocol, batch: KVBatchMeta, seed: int = 0) -> Fault:
    """Two rows of one group get each other's reward, as if answers of a service came back in another order.

    To find: keys, a set of two. FaultError if no group has two different rewards.
    """
    home = partition_of(batch)
    rewards = {key: float(scores[-1]) for key, scores in rows_of(tq, batch, "rm_scores").items()}
    pairs = [(a, b) for a in rewards for b in rewards if uid_of(a) == uid_of(b) and rewards[a] > rewards[b]]
    if not pairs:
        raise FaultError("no group of the batch has two different rewards: choose another batch")
    one, other = random.Random(seed).choice(pairs)
    saved = save(tq, home, [one, other])
    for key, reward in ((one, rewards[other]), (other, rewards[one])):
        rm_scores = saved[home, key][1]["rm_scores"].unbind()[0].clone()
        rm_scores[-1] = reward
        tq.kv_put(key, home, fields={"rm_scores": rm_scores})
    judges = {"keys": some_keys(tq, [one, other], "its reward is what the rule gives for its text")}
    return Fault(tq, f"{one} and {other} have each other's reward", None, {"keys": {one, other}}, judges, saved)


def make_reward_model(folder: str | Path, tokenizer_path: str | Path) -> str:
    """Save a tiny untrained reward model: a transformer with one number as its output. Returns the folder."""
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    tokenizer = load_tokenizer(tokenizer_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
        heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_labels": 1}
        settings = Qwen3Config(vocab_size=len(tokenizer), initializer_range=0.3, **sizes, **heads)
        model = Qwen3ForSequenceClassification(settings)
    settings.save_pretrained(folder)
    # not model.save_pretrained, which draws a progress bar
    save_file(model.state_dict(), Path(folder) / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    return str(folder)


def fence() -> dict[str, bool]:
    """Arguments for the sandbox: none where it can take the network away from a program, else leave to go without."""
    try:
        namespaces(allow_network=False)
    except SandboxError:
        return {"allow_network": True}
    return {}
