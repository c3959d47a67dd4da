"""A queue with prompts and rows made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from kitlib.transfer_queue import TransferQueue, list_of_dict_to_tensordict
from tests.transfer_queue.conftest import OwnPartitions, package_queue  # noqa: F401  a fixture


@dataclass
class Board:
    """Puts groups into a queue the way the agent loop does."""

    tq: TransferQueue

    def marker(self, uid: str, status: str, step: int = 1, partition_id: str = "train", **tags: object) -> None:
        """Write or rewrite a prompt marker."""
        tag = {"is_prompt": True, "status": status, "global_steps": step, **tags}
        self.tq.kv_put(key=uid, partition_id=partition_id, tag=tag)

    def rows(
        self, uid: str, scores: tuple[float, ...] = (1.0, 0.0), partition_id: str = "train", **info: float
    ) -> list[str]:
        """One trajectory row a score; `info` goes into reward_extra_info."""
        keys = [f"{uid}_{session}_0" for session in range(len(scores))]
        if keys:
            fields = [
                {"rm_scores": torch.tensor([0.0, score]), "extra_fields": {"reward_extra_info": dict(info)}}
                for score in scores
            ]
            tags = [{"status": "success", "seq_len": 3} for _ in keys]
            self.tq.kv_batch_put(
                keys=keys, partition_id=partition_id, fields=list_of_dict_to_tensordict(fields), tags=tags
            )
        return keys

    def group(
        self, uid: str, status: str = "finished", step: int = 1, partition_id: str = "train", scores=(1.0, 0.0)
    ) -> list[str]:
        """Rows and a marker with a terminal status."""
        keys = self.rows(uid, scores, partition_id)
        self.marker(uid, status, step, partition_id)
        return keys

    def keys(self, partition_id: str = "train") -> set[str]:
        return set(self.tq.kv_list(partition_id).get(partition_id, {}))


@pytest.fixture(params=["ours", pytest.param("package", marks=pytest.mark.ray)])
def board(request: pytest.FixtureRequest) -> Iterator[Board]:
    """An empty board on our store, and on the package where Ray is installed."""
    if request.param == "package":
        yield Board(OwnPartitions(request.getfixturevalue("package_queue")))
        return
    queue = TransferQueue()
    yield Board(queue)
    queue.close()
