"""A tiny model, a config and a batch for the tests of this room, and two processes that make one job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tensordict import TensorDict
from torch import Tensor

from kitlib.config import load_config
from kitlib.transfer_queue import jagged
from kitlib.workers.actor import ActorRolloutRefWorker

VOCAB_SIZE = 32


def tiny_model(seed: int = 0, **overrides: Any) -> Any:
    """A random 2-layer Qwen3 of 32-token vocabulary."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True, "max_position_embeddings": 512}
    return Qwen3ForCausalLM(Qwen3Config(**{"vocab_size": VOCAB_SIZE, **sizes, **more, **overrides}))


def make_batch(num_rows: int = 8, seed: int = 0) -> TensorDict:
    """Rows of ragged prompts and responses with masked tool tokens, old log-probs and advantages."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[dict[str, Tensor]] = []
    for _ in range(num_rows):
        prompt_len, response_len = torch.randint(3, 12, (2,), generator=generator).tolist()
        input_ids = torch.randint(0, VOCAB_SIZE, (prompt_len + response_len,), generator=generator)
        mask = (torch.rand(response_len, generator=generator) > 0.3).long()
        mask[0] = 1
        rows.append(
            {
                "input_ids": input_ids,
                "position_ids": torch.arange(len(input_ids)),
                "prompts": input_ids[:prompt_len],
                "responses": input_ids[prompt_len:],
                "response_mask": mask,
                "loss_mask": mask.clone(),
                "old_log_probs": -3.5 + 0.3 * torch.randn(response_len, generator=generator),
                "ref_log_prob": -3.5 + 0.3 * torch.randn(response_len, generator=generator),
                "advantages": torch.randn(1, generator=generator).expand(response_len) * mask,
            }
        )
    return TensorDict({name: jagged([row[name] for row in rows]) for name in rows[0]}, batch_size=[num_rows])


def with_settings(data: TensorDict, **settings: Any) -> TensorDict:
    """The batch as the bridge hands it to update_actor: with the settings of the trainer."""
    rows = len(data)
    defaults = {"mini_batch_size": rows, "global_batch_size": rows, "epochs": 1, "seed": 0, "temperature": 1.0}
    data = TensorDict({name: data[name] for name in data.keys()}, batch_size=data.batch_size)
    for name, value in {
        **defaults,
        "dataloader_kwargs": {"shuffle": False},
        "calculate_entropy": False,
        **settings,
    }.items():
        data.set_non_tensor(name, value)
    return data


def make_config(*overrides: str) -> Any:
    return load_config([f"actor_rollout_ref.{override}" for override in overrides])


@pytest.fixture
def make_worker() -> Iterator[Callable[..., ActorRolloutRefWorker]]:
    """Workers that are closed after the test: make_worker("actor.optim.lr=0.1", model=...)."""
    workers = []

    def make(*overrides: str, model: Any = None) -> ActorRolloutRefWorker:
        workers.append(ActorRolloutRefWorker(make_config(*overrides), tiny_model() if model is None else model))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def run_two_ranks(main: Callable[[int, str], None], folder: Path) -> None:
    """`main(rank, folder)` in two processes of one gloo group. Raises what a rank raises.

    A rank that has done its work has succeeded, however it leaves: threads of gloo may abort a process on its way out.
    """
    try:
        mp.spawn(_rank, args=(main, str(folder)), nprocs=2)
    except (mp.ProcessExitedException, mp.ProcessRaisedException):
        if not all((folder / f"done{rank}").exists() for rank in range(2)):
            raise


def _rank(rank: int, main: Callable[[int, str], None], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    main(rank, folder)
    Path(folder, f"done{rank}").touch()
    dist.barrier()  # whoever leaves first would take the other with it
    dist.destroy_process_group()
