"""The stage table: one column a stage, judged by what the next stage reads."""

from __future__ import annotations

import torch

from kitlib.inspector import stage_table
from kitlib.transfer_queue import TransferQueue, list_of_dict_to_tensordict, take_snapshot


def test_each_field_appears_at_its_stage_and_a_hole_is_counted() -> None:
    tq = TransferQueue()
    history = []
    tq.kv_put(key="u", partition_id="train", tag={"is_prompt": True, "status": "pending", "global_steps": 1})
    history.append(("submit_batch_to_rollout", take_snapshot(tq)))
    tq.kv_clear(keys=["u"], partition_id="train")
    rows = [{"rm_scores": torch.zeros(2), "uid": "u", "response_mask": torch.ones(2)} for _ in range(2)]
    keys = ["u_0_0", "u_1_0"]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows))
    history.append(("sample", take_snapshot(tq)))
    tq.kv_put(key="u_0_0", partition_id="train", fields={"advantages": torch.zeros(2)})
    history.append(("compute_advantage", take_snapshot(tq)))
    history.append(("update_actor", take_snapshot(tq)))

    view = stage_table(history, {"algorithm": {"adv_estimator": "grpo"}})
    text = view.text(width=140)
    by_field = {row.split("  ")[0].strip(): row.split()[-4:] for row in text.splitlines()}
    assert by_field["prompt markers"] == ["1", "-", "-", "-"]
    assert by_field["rows"] == ["-", "2", "2", "2"]
    assert by_field["rm_scores"] == ["·", "■", "▪", "▪"]  # the next column's stage, compute_advantage, reads it
    assert by_field["advantages"] == ["·", "·", "1/2", "1/2"]
    for word in ("advantages", "rm_scores", "submit", "update actor", "1/2"):
        assert word in view.html()
    tq.close()


def test_without_a_snapshot_of_the_partition_there_is_nothing_to_show() -> None:
    tq = TransferQueue()
    assert "fields on the rows" in stage_table([("sample", take_snapshot(tq))]).text()
    tq.close()
