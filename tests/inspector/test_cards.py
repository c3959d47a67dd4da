"""The stage card and the partitions, both small."""

from __future__ import annotations

import time

import pytest
import torch

from kitlib.contract import STAGES, StageRecord
from kitlib.inspector import UnknownStageError, View, partitions, stage_card
from kitlib.transfer_queue import TransferQueue
from tests.inspector.queues import GRPO, board_queue, marker, put_row
from tests.inspector.reading import assert_same_facts


def answers(view: View) -> dict[str, list[str]]:
    """question -> answers; a line without a question belongs to the one above."""
    found: dict[str, list[str]] = {}
    question = ""
    for row in view.model.tables[0].rows:
        question = str(row[0]) or question
        found.setdefault(question, []).append(str(row[1]))
    return found


def test_five_questions_about_the_advantage_stage() -> None:
    view = stage_card("compute_advantage", GRPO)
    said = answers(view)
    assert said["called by"] == ["PPOTrainer.step_once"]
    assert set(said["reads"][0].split()) == {"uid", "response_mask", "rm_scores", "old_log_probs", "rollout_log_probs"}
    assert {"advantages", "returns"} <= set(said["writes"][0].split())
    assert any(line.startswith("update_actor") and "advantages" in line for line in said["next used by"])
    assert "algorithm.adv_estimator=grpo" in said["switched by"][0]
    assert "trainer/ppo/v1/trainer_base.py" in view.text(200)
    assert_same_facts(view)


def test_config_changes_the_card() -> None:
    kl = {"algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": True}}
    assert "ref_log_prob" not in answers(stage_card("compute_advantage", GRPO))["reads"][0]
    assert "ref_log_prob" in answers(stage_card("compute_advantage", kl))["reads"][0]
    assert "does not run: critic.enable" in stage_card("compute_values", GRPO).text(200)
    assert "with other settings also: ref_log_prob (use_kl_in_reward)" in stage_card("compute_advantage", GRPO).text(
        300
    )


def test_optional_fields_stand_in_brackets() -> None:
    assert "[num_turns]" in answers(stage_card("compute_metrics", GRPO))["reads"][0]


def test_runs_of_the_stage_are_summed_up() -> None:
    def run(stage: str, seconds: float | None, error: str | None = None) -> StageRecord:
        return StageRecord(stage, 3, time.time(), 128, "train", seconds, error)

    records = [run("compute_advantage", 0.01), run("compute_advantage", 0.004, "KeyError: x"), run("update_actor", 1.0)]
    said = answers(stage_card("compute_advantage", GRPO, [*records, run("compute_advantage", None)]))["this run"]
    assert said == ["2 runs; the last took 4.0 ms for 128 rows 1 failed: KeyError: x"]


def test_a_stage_without_rows_says_only_how_long_it_took() -> None:
    record = StageRecord("update_weights", 3, time.time(), 0, None, 0.004)
    assert answers(stage_card("update_weights", GRPO, [record]))["this run"] == ["1 run; the last took 4.0 ms"]


@pytest.mark.parametrize("stage", list(STAGES))
def test_every_stage_of_the_contract_has_a_card(stage: str) -> None:
    assert_same_facts(stage_card(stage))


def test_unknown_stage() -> None:
    with pytest.raises(UnknownStageError, match="did you mean update_actor"):
        stage_card("update_actors")


def test_partitions_side_by_side() -> None:
    tq = board_queue({"f3a1": [1, 0]})
    put_row(tq, "pad77_0_0", 0.0, is_padding=True)
    tq.kv_batch_put(["f3a1", "9c02", "ghost"], "train", tags=[marker("finished"), marker("running"), {}])
    tq.kv_put("v_0_0", "val", {"responses": torch.arange(4)}, {"status": "success"})
    view = partitions(tq)
    rows = {str(row[0]): [str(one) for one in row[1:]] for row in view.model.tables[0].rows}
    assert rows["train"][:-1] == ["6", "1 finished 1 running", "1", "3 success", "1", "1", "3"]
    assert rows["val"] == ["1", "-", "1", "1 success", "-", "-", "1", "32 bytes"]
    assert "2 partitions  7 keys  no key in more than one partition" in view.text()
    assert_same_facts(view)


def test_key_in_two_partitions_is_loud() -> None:
    tq = board_queue({"f3a1": [1, 0]})
    tq.kv_put("f3a1_0_0", "val", {"responses": torch.arange(4)}, {})
    assert "1 key in more than one partition: f3a1_0_0" in partitions(tq).text()


def test_empty_queue_has_no_partition() -> None:
    assert "0 partitions  0 keys" in partitions(TransferQueue()).text()
