"""Every case in a real store: put, photographed, examined; and the same through the TransferQueue package on Ray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kitlib.inspector.doctor import doctor
from kitlib.inspector.doctor.case_file import arguments_of
from kitlib.inspector.doctor.diagnose import report_of
from kitlib.inspector.doctor.examine import examine
from kitlib.inspector.doctor.situation import Situation
from kitlib.inspector.doctor.values import QueueValues
from kitlib.transfer_queue import TransferQueue, take_snapshot

from .cases import CASES, MORE, put
from .judging import complaints

STATES = {name: raw for name, raw in (CASES | MORE).items() if raw.get("buildable", True)}


def examined(raw: dict[str, Any], tq: Any, is_coarse: bool = False) -> list[str]:
    """Complaints about what the rules say of this store. A picture of before is read from the file."""
    s = Situation(take_snapshot(tq), QueueValues(tq), is_coarse=is_coarse, **arguments_of(raw))
    found = examine(s)
    assert not found.failures
    return complaints(raw, report_of(tq, [s], found).findings)


@pytest.mark.parametrize("name", STATES)
def test_case_in_our_store(name: str) -> None:
    raw = STATES[name]
    tq = TransferQueue()
    put(raw, tq)
    assert tq.kv_list() == {p: {e["key"]: e["tag"] for e in entries} for p, entries in raw["partitions"].items()}
    assert not examined(raw, tq)


def test_doctor_takes_the_queue_itself() -> None:
    raw = CASES["case_03b_rewards_missing_on_one_row"]
    tq = TransferQueue()
    put(raw, tq)
    report = doctor(tq, stage=raw["stage"], config=raw["config"], batch=raw["batch"], global_steps=raw["global_steps"])
    (finding,) = report.errors
    assert (finding.kind, finding.keys, finding.fields) == ("field_missing", ("4107529_1_0",), ("rm_scores",))
    assert any("last write" in line for line in finding.evidence)


@pytest.fixture(scope="module")
def package() -> Iterator[Any]:
    pytest.importorskip("ray")
    pytest.importorskip("transfer_queue")
    import ray

    from kitlib.transfer_queue.package import connect

    tq = connect(num_cpus=16)
    yield tq
    tq.close()
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.slow
def test_cases_in_the_package(package: Any) -> None:
    wrong = {}
    for name, raw in STATES.items():
        put(raw, package)
        wrong[name] = examined(raw, package, is_coarse=True)
        for partition_id, keys in package.kv_list().items():
            if keys:
                package.kv_clear(keys=list(keys), partition_id=partition_id)
    assert not {name: said for name, said in wrong.items() if said}
