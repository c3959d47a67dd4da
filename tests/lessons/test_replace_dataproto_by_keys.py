"""Lesson 02: its checks name each wrong answer, the planted mix-up is really there, and the helpers tell the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from kitlib.agent_loop import AgentLoopOutput
from kitlib.lessons.answers import Answer
from kitlib.lessons.replace_dataproto_by_keys import (
    Misjoined,
    check_num_padding,
    check_row_score,
    draw_cells,
    look,
    misjoin_scores,
    num_bytes,
    same_order,
)
from kitlib.trainer.v0 import DataProto
from kitlib.trainer.v0.columns import object_column
from kitlib.trainer.v0.padding import collate_outputs
from kitlib.transfer_queue import KVBatchMeta, TransferQueue, list_of_dict_to_tensordict, padded, watch


def said(answer: Answer) -> str:
    assert answer.ok is False
    return "\n".join(answer.says)


def sessions() -> DataProto:
    """Four answers of 3, 5, 2 and 4 tokens; the first and the third have a reward."""
    outputs = [
        AgentLoopOutput(
            prompt_ids=[5] * (2 + number % 2),
            response_ids=[7] * size,
            response_mask=[1, 0, *[1] * (size - 2)],
            reward_score=float(number % 2 == 0),
        )
        for number, size in enumerate((3, 5, 2, 4))
    ]
    return collate_outputs(outputs, prompt_length=4, response_length=6, pad_token_id=0)


def in_queue(data: DataProto) -> TensorDict:
    """The same rows, jagged."""
    assert data.batch is not None
    mask = data.batch["attention_mask"].bool()
    names = {"prompts": mask[:, :4], "response_mask": mask[:, 4:]}
    rows = [{name: data.batch[name][i][kept[i]] for name, kept in names.items()} for i in range(len(data))]
    tq = TransferQueue()
    keys = [f"u_{i}_0" for i in range(len(rows))]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows))
    return tq.kv_batch_get(keys, "train")


class TestRowScore:
    @pytest.fixture
    def roads(self) -> tuple[DataProto, TransferQueue]:
        """Scores of a, b, c delivered after a reorder to c, a, b."""
        scores, tq = torch.tensor([10.0, 20.0, 30.0]), TransferQueue()
        data = DataProto.from_dict({"x": torch.arange(3)}, {"uid": object_column(["a", "b", "c"])})
        data.reorder(torch.tensor([2, 0, 1]))
        data.union(DataProto.from_dict({"score": scores}))
        keys = ["a_0_0", "b_0_0", "c_0_0"]
        tq.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict({"score": scores}, batch_size=[3]))
        return data, tq

    def test_right(self, roads: Any) -> None:
        assert check_row_score(20, 10, *roads, uid="a").ok is True
        assert check_row_score(30.0, 20.0, *roads, uid="b").ok is True
        assert check_row_score(torch.tensor(20.0), np.int64(10), *roads, uid="a").ok is True

    def test_open(self, roads: Any) -> None:
        assert check_row_score(..., 10, *roads, uid="a").ok is None
        assert check_row_score(20, ..., *roads, uid="a").ok is None

    def test_wrong(self, roads: Any) -> None:
        assert "union does not look for a" in said(check_row_score(10, 10, *roads, uid="a"))
        assert "that is the score of b now" in said(check_row_score(30, 10, *roads, uid="a"))
        assert "V0, not 'b': the scores are 10, 20, 30" in said(check_row_score("b", 10, *roads, uid="a"))
        assert "V1, not [10]: the scores are 10, 20, 30" in said(check_row_score(20, [10], *roads, uid="a"))
        assert "the scores are" in said(check_row_score(torch.tensor([20, 10]), 10, *roads, uid="a"))
        assert said(check_row_score(20, 20, *roads, uid="a")).startswith("V1, not 20: the put names its keys")
        assert len(check_row_score(10, 30, *roads, uid="a").says) == 2


class TestNumPadding:
    def test_right_and_open(self) -> None:
        assert check_num_padding(4 * 10 - (10 + 14), sessions()).ok is True
        assert check_num_padding(torch.tensor(16), sessions()).says == check_num_padding(16.0, sessions()).says
        assert check_num_padding(..., sessions()).ok is None

    def test_wrong(self) -> None:
        data = sessions()
        assert "24 cells hold a token" in said(check_num_padding(24, data))
        longest = 4 * 3 - 10 + 4 * 5 - 14
        assert "up to the longest row of the batch" in said(check_num_padding(longest, data))
        for one_side in (4 * 4 - 10, 4 * 6 - 14):
            assert "is one side" in said(check_num_padding(one_side, data))
        assert "cells are rows times" in said(check_num_padding(3, data))
        assert "not many: cells are rows times" in said(check_num_padding("many", data))
        assert "cells are rows times" in said(check_num_padding(np.array([16, 16]), data))


class TestMisjoinedScores:
    def plant(self, seed: int = 0) -> Misjoined:
        return misjoin_scores(sessions(), seed)

    @pytest.mark.parametrize("seed", range(6))
    def test_the_score_does_not_stand_on_the_last_token(self, seed: int) -> None:
        fault = self.plant(seed)
        batch = fault.data.batch
        assert batch is not None
        scores, last = batch["rm_scores"], batch["attention_mask"][:, 4:].sum(dim=1) - 1
        found = [row for row in range(4) if scores[row].any() and not scores[row, last[row]]]
        assert found == [fault.row]
        assert not scores[fault.owner].any()
        assert fault.check(fault.row).ok is True

    def test_wrong(self) -> None:
        fault = self.plant()
        others = set(range(4)) - {fault.row, fault.owner}
        rewarded = next(row for row in others if row in (0, 2))
        zeros = next(row for row in others if row in (1, 3))
        assert "has lost its score" in said(fault.check(fault.owner))
        assert "is healthy: its score stands on its last token" in said(fault.check(rewarded))
        assert "has no score at all" in said(fault.check(zeros))
        for odd in (4, -1, "3", True, None):
            assert "row is a number from 0 to 3" in said(fault.check(odd))
        assert fault.check(...).ok is None
        assert fault.check(torch.tensor([[fault.row]])).ok is True  # as nonzero() gives it
        assert fault.check(np.int64(fault.row)).ok is True

    def test_mending_and_printing(self) -> None:
        fault, before = self.plant(), sessions().batch
        assert before is not None
        assert str(fault.row) not in repr(fault)
        assert f"row {fault.row} holds the score of row {fault.owner}" == fault.reveal()
        fault.mend()
        assert fault.data.batch is not None
        assert torch.equal(fault.data.batch["rm_scores"], before["rm_scores"])


class TestHelpers:
    def test_cells_of_both_roads(self) -> None:
        data = sessions()
        assert draw_cells(data).rows == ("..ppmtm...", ".pppmtmmm.", "..ppmt....", ".pppmtmm..")
        assert draw_cells(in_queue(data)).rows == ("ppmtm", "pppmtmmm", "ppmt", "pppmtmm")
        assert str(draw_cells(data)) == "4 rows, 40 cells, 40% of them padding"
        assert str(draw_cells(in_queue(data))) == "4 rows, 24 cells, no padding"
        assert "p prompt  m model  t tool  . padding" in repr(draw_cells(data))

    def test_the_picture_has_a_box_for_each_run_of_tokens(self) -> None:
        svg = draw_cells(sessions())._repr_mimebundle_()["text/html"]
        assert svg.count("<rect") == (6 + 6 + 5 + 6) + 4  # runs of the rows, and the legend
        assert svg.startswith("<svg")

    def test_bytes_count_padding(self) -> None:
        data = DataProto.from_dict({"x": torch.zeros(2, 5), "y": torch.zeros(2, dtype=torch.int64)})
        assert num_bytes(data) == 2 * 5 * 4 + 2 * 8
        assert num_bytes(DataProto()) == 0

    def test_same_order(self) -> None:
        tq, keys = watch(TransferQueue()), ["p_0_0", "p_1_0", "q_0_0", "q_1_0"]
        rows = [{"index": 3 + row // 2, "session_id": row % 2, "x": torch.ones(row + 1)} for row in range(4)]
        tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows))
        objects = {
            "extra_info": object_column([{"index": index} for index in (4, 3, 4, 3)]),
            "session_id": object_column([0, 1, 1, 0]),
        }
        batch = same_order(DataProto.from_dict(non_tensors=objects), tq, KVBatchMeta(keys, [{}] * 4, "train"))
        assert batch.keys == ["q_0_0", "p_1_0", "q_1_0", "p_0_0"]
        assert padded(look(tq, batch, "x")["x"]).sum(dim=1).tolist() == [3, 2, 4, 1]
        assert set(look(tq, batch).keys()) == {"index", "session_id", "x"}
        assert {event.who["stage"] for event in tq.log.events() if event.verb == "kv_batch_get"} == {"inspector"}
