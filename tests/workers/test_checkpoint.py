"""A worker saved and loaded: it goes on as if nothing had happened, and takes no file that is not its own."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kitlib.models import load_causal_lm
from kitlib.workers.actor import ActorRolloutRefWorker
from kitlib.workers.engine.state import rng_state, set_rng_state
from kitlib.workers.errors import CheckpointError
from kitlib.workers.state_files import read_state, write_state
from tests.workers.conftest import make_batch, make_config, run_two_ranks, tiny_model, with_settings

MakeWorker = Callable[..., ActorRolloutRefWorker]
SETTINGS = ("actor.optim.lr=0.01", "actor.optim.lr_warmup_steps=6")


def train(worker: ActorRolloutRefWorker, num_updates: int, start: int = 0) -> list[dict[str, float]]:
    return [worker.update_actor(with_settings(make_batch(seed=start + i))) for i in range(num_updates)]


def test_a_loaded_worker_goes_on_exactly_as_the_saved_one(make_worker: MakeWorker, tmp_path: Path) -> None:
    first = make_worker(*SETTINGS)
    train(first, 3)
    first.save_checkpoint(tmp_path)
    again = make_worker(*SETTINGS, model=tiny_model(seed=1))
    again.load_checkpoint(tmp_path)
    assert train(again, 3, start=3) == train(first, 3, start=3)  # moments, step count and warm-up are all there
    weights, expected = again.state_dict_for_rollout(), first.state_dict_for_rollout()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_files_hold_no_code_and_no_weight_twice(make_worker: MakeWorker, tmp_path: Path) -> None:
    worker = make_worker(*SETTINGS)
    worker.save_checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "extra_rank_0.pt",
        "model.safetensors",
        "optimizer.pt",
    ]
    num_bytes = sum(p.numel() * 4 for p in worker.engine.model.parameters())  # the tied head is not counted twice
    assert num_bytes < (tmp_path / "model.safetensors").stat().st_size < num_bytes * 1.1


@pytest.mark.parametrize("contents", [["model"], ["model", "hf_model"]])
def test_contents_are_those_of_the_config(make_worker: MakeWorker, tmp_path: Path, contents: list[str]) -> None:
    worker = make_worker(*SETTINGS, f"actor.checkpoint.save_contents=[{','.join(contents)}]")
    worker.save_checkpoint(tmp_path)
    names = {"model": "model.safetensors", "hf_model": "huggingface"}
    assert {path.name for path in tmp_path.iterdir()} == {names[name] for name in contents}
    if "hf_model" in contents:
        model = load_causal_lm(tmp_path / "huggingface")
        expected = worker.state_dict_for_rollout()
        assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    with pytest.raises(CheckpointError, match=r"optimizer.pt is missing"):
        make_worker(*SETTINGS).load_checkpoint(tmp_path)
    make_worker(*SETTINGS, "actor.checkpoint.load_contents=[model]").load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "extra_rank_0.pt"])
def test_a_truncated_or_missing_file_is_named(make_worker: MakeWorker, tmp_path: Path, name: str) -> None:
    worker = make_worker(*SETTINGS)
    worker.save_checkpoint(tmp_path)
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged, or "):
        worker.load_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        worker.load_checkpoint(tmp_path)


def test_the_checkpoint_of_another_model_is_refused(make_worker: MakeWorker, tmp_path: Path) -> None:
    make_worker(*SETTINGS).save_checkpoint(tmp_path)
    for change, said in (
        ({"num_hidden_layers": 1}, r"another model: unknown model.layers.1"),
        ({"num_hidden_layers": 3}, r"another model: without model.layers.2"),
        ({"intermediate_size": 48}, r"mlp.down_proj.weight is \(32, 64\) there and \(32, 48\) here"),
    ):
        with pytest.raises(CheckpointError, match=said):
            make_worker(*SETTINGS, model=tiny_model(**change)).load_checkpoint(tmp_path)


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def test_a_file_with_code_is_refused_and_the_code_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state": Bomb()}, "zip.pt")
    Path("plain.pt").write_bytes(pickle.dumps({"state": Bomb()}, protocol=2))
    for name in ("zip.pt", "plain.pt"):
        with pytest.raises(CheckpointError, match=f"{name} is damaged, or holds more than data"):
            read_state(Path(name))
    assert not Path("exploded").exists()


def test_what_could_not_be_read_back_is_refused_when_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"data.pt\['dataset'\]\['rows'\]\[1\] is a ndarray"):
        write_state(tmp_path / "data.pt", {"dataset": {"rows": [1, np.arange(3)]}})
    assert not (tmp_path / "data.pt").exists()


def test_random_states_come_back(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(1).item()]

    cpu = torch.device("cpu")
    draw()  # leaves half a pair of gaussians behind in numpy and in Python
    write_state(tmp_path / "rng.pt", rng_state(cpu))
    expected = draw()
    draw()
    set_rng_state(read_state(tmp_path / "rng.pt"), cpu)
    assert draw() == expected


def rank_main(rank: int, folder: str) -> None:
    worker = ActorRolloutRefWorker(make_config(*SETTINGS), tiny_model(seed=rank + 5))
    worker.load_checkpoint(Path(folder) / "one")
    worker.save_checkpoint(Path(folder) / "two")
    worker.close()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_ranks_load_what_one_has_saved_and_the_other_way_round(make_worker: MakeWorker, tmp_path: Path) -> None:
    one = make_worker(*SETTINGS)
    train(one, 3)
    one.save_checkpoint(tmp_path / "one")
    run_two_ranks(rank_main, tmp_path)
    assert (tmp_path / "two" / "extra_rank_1.pt").exists()
    again = make_worker(*SETTINGS, model=tiny_model(seed=1))
    again.load_checkpoint(tmp_path / "two")
    assert train(again, 2, start=3) == train(one, 2, start=3)
