"""Shard map, why_waiting and the config: views of what somebody else has worked out."""

from __future__ import annotations

import pytest
import torch

from kitlib.config import load_config
from kitlib.contract import STAGES
from kitlib.inspector import ShardMapError, View, config_table, shard_map, why_waiting
from kitlib.replay_buffer.waiting import BlockingPrompt, WaitReport
from kitlib.transfer_queue import TransferQueue, acting_as, watch
from tests.inspector.reading import assert_same_facts

LAYERS = [(f"model.layers.{i}.mlp.up_proj.weight", (64, 32), "Shard(0)", (4096, 4096)) for i in range(3)]
ROWS = [("model.embed_tokens.weight", (71, 32), "Shard(0)", (4608, 4480)), *LAYERS]


def lines(view: View, number: int = 0) -> list[list[str]]:
    return [[str(one) for one in row] for row in view.model.tables[number].rows]


# ---------------------------------------------------------------------------------------------------------- shard map


def test_layers_that_look_alike_share_a_line() -> None:
    view = shard_map(ROWS)
    assert view.headline == "4 parameters, 8,416 elements  34 KB over 2 ranks: 17 KB to 17 KB a rank"
    assert lines(view) == [
        ["model.embed_tokens.weight", "1", "[71, 32]", "Shard(0)", "4.6 KB", "4.5 KB"],
        ["model.layers.{0..2}.mlp.up_proj.weight", "3", "[64, 32]", "Shard(0)", "4.1 KB", "4.1 KB"],
    ]
    assert len(lines(shard_map(ROWS, collapse=False))) == 4
    assert_same_facts(view)


def test_layers_that_differ_stay_apart_and_gaps_are_listed() -> None:
    odd = [*LAYERS[:1], ("model.layers.1.mlp.up_proj.weight", (64, 32), "Replicate()", (8192, 8192)), *LAYERS[2:]]
    names = [line[0] for line in lines(shard_map(odd))]
    assert names == ["model.layers.{0,2}.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"]


def test_many_ranks_show_least_and_most_and_an_empty_rank_is_loud() -> None:
    view = shard_map([("w", (3, 4), "Shard(0)", [16] * 3 + [0] * 9)])
    assert lines(view) == [["w", "1", "[3, 4]", "Shard(0)", "0 bytes", "16 bytes"]]
    assert "0 bytes to 16 bytes a rank" in view.headline


def test_ranks_must_agree() -> None:
    with pytest.raises(ShardMapError, match="ranks: give every one the bytes of all ranks"):
        shard_map([*ROWS, ("w", (1,), "Replicate()", 4)])


# --------------------------------------------------------------------------------------------------------- why_waiting


def report(**changes: object) -> WaitReport:
    prompt = BlockingPrompt("u64", "running", 8, 8, age=2, is_live=False)
    fields = {
        "request": "sample(train, 64 prompts) at step 214: 63 of 64 ready, waiting 41.2 s",
        "counts": "pending 0, running 1, finished 63, failure 0",
        "blocking": (prompt,),
        "can_end": False,
        "verdict": "Not by itself: no task of u64 is running any more.",
    }
    return WaitReport(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_dead_wait_is_loud_and_says_what_is_missing() -> None:
    tq = watch(TransferQueue())
    with acting_as(stage="generate_sequences", worker="agent-loop-2"):
        tq.kv_put("u64_7_0", "train", {"x": torch.zeros(1)})
    view = why_waiting(report(), tq)
    assert "63 of 64 ready, waiting 41.2 s" in view.headline and "WILL NOT END BY ITSELF" in view.headline
    (line,) = lines(view)
    assert line[:5] == ["u64", "running", "8 of 8 all done, only the status is missing", "2 steps ago", "none"]
    assert line[5].startswith("u64_7_0 ") and line[5].endswith("by generate_sequences (agent-loop-2)")
    assert "Will it end? Not by itself" in view.text(200)
    assert_same_facts(view)


def test_a_slow_wait_is_no_alarm() -> None:
    prompts = (BlockingPrompt("u1", "pending", 0, None, 0, None),)
    view = why_waiting(report(blocking=prompts, can_end=True, held_back_by=("u1",)))
    assert "WILL NOT END" not in view.headline and "strategy wait: held back until the end of u1" in view.text(200)
    assert lines(view) == [["u1", "pending", "0 of ?", "this step", "not known"]]


def test_nobody_waits() -> None:
    assert why_waiting(None).headline == "sample  nobody waits"


# -------------------------------------------------------------------------------------------------------------- config


def test_chosen_settings_their_origin_and_the_stages_they_change() -> None:
    view = config_table(load_config(["algorithm.use_kl_in_reward=true", "actor_rollout_ref.rollout.n=4"]))
    assert view.headline.startswith("2 of ") and "chosen by file or override" in view.headline
    settings = {line[1]: line for line in lines(view, 1)}
    assert settings["use_kl_in_reward"][2:4] == ["true", "override"]
    assert "compute_advantage" in settings["use_kl_in_reward"][4]
    groups = [line[0] for line in lines(view, 1) if line[0]]
    assert groups[:5] == ["algorithm", "actor_rollout_ref", "critic", "reward", "trainer"]
    branches = {line[0]: line[1] for line in lines(view)}
    assert branches["use_kl_in_reward"] == "yes" and branches["use_kl_loss"] == "no"
    assert_same_facts(view)


def test_every_condition_of_the_contract_is_a_branch() -> None:
    texts = {stage.runs_when.text for stage in STAGES.values()}
    texts |= {need.when.text for stage in STAGES.values() for need in (*stage.reads, *stage.writes)}
    assert len(config_table({}).model.tables[0].rows) == len(texts - {"always"})


def test_a_typo_is_answered_with_near_names() -> None:
    said = config_table(load_config(), "algoritm.adv_estimater").headline
    assert said == "algoritm.adv_estimater  is no setting  did you mean algorithm.adv_estimator?"


def test_a_group_shows_all_its_settings() -> None:
    (table,) = config_table(load_config(), "algorithm.kl_ctrl").model.tables
    assert [str(row[1]) for row in table.rows] == [
        f"kl_ctrl.{name}" for name in ("type", "kl_coef", "horizon", "target_kl")
    ]


def test_a_plain_mapping_has_no_origins() -> None:
    view = config_table({"algorithm": {"adv_estimator": "gae"}})
    assert "adv_estimator" in view.text(200) and "given" in view.text(200)
