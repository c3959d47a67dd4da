"""The contract agrees with itself, answers under different configs, and is enforced by the decorator."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import pytest
from tensordict import TensorDict

from kitlib.contract import FIELDS, GROUPS, STAGES, SWITCHES, TAGS, ContractError, StageRecord, needs, stage, switch


def test_stages_name_only_known_fields_and_tags() -> None:
    for spec in STAGES.values():
        assert {need.field for need in (*spec.reads, *spec.writes)} <= set(FIELDS)
        assert {*spec.tags_read, *spec.tags_written} <= set(TAGS)
    assert {field.group for field in FIELDS.values()} == set(GROUPS)


def test_every_field_that_is_read_is_written_by_an_earlier_stage() -> None:
    """Under verl's defaults: no stage can need what nothing before it has written."""
    written: set[str] = set()
    for name in STAGES:
        spec = needs(name)
        if name != "sample" and spec.runs:
            assert set(spec.reads) <= written, name
            written |= set(spec.writes)


@pytest.mark.parametrize(
    ("config", "stage_name", "field", "is_read"),
    [
        ({}, "compute_advantage", "values", True),
        ({"algorithm": {"adv_estimator": "grpo"}}, "compute_advantage", "values", False),
        ({"algorithm": {"adv_estimator": "grpo"}, "critic": {"enable": True}}, "compute_advantage", "values", True),
        ({}, "update_actor", "ref_log_prob", False),
        ({"actor_rollout_ref": {"actor": {"use_kl_loss": True}}}, "update_actor", "ref_log_prob", True),
        ({"algorithm": {"rollout_correction": {"bypass_mode": True}}}, "compute_old_log_prob", "input_ids", False),
    ],
)
def test_needs_follow_the_config(config: dict, stage_name: str, field: str, is_read: bool) -> None:
    assert (field in needs(stage_name, config).reads) is is_read


def test_stages_that_the_config_leaves_out_do_not_run() -> None:
    assert not needs("compute_ref_log_prob").runs
    assert needs("compute_ref_log_prob", {"algorithm": {"use_kl_in_reward": True}}).runs


def test_an_unknown_stage_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="compute_advantage"):
        needs("advantage")


def test_the_columns_of_verls_data_are_in_the_contract_and_on_the_markers_of_the_async_modes() -> None:
    columns = {"data_source", "prompt", "ability", "agent_name", "reward_model", "extra_info"}
    need = {need.field: need for need in STAGES["submit_batch_to_rollout"].writes}
    assert {FIELDS[name].group for name in columns} == {"dataset"}
    assert all(not need[name].required and need[name].note for name in columns)
    assert all(need[name].when.holds({"trainer": {"v1": {"trainer_mode": "colocate_async"}}}) for name in columns)
    assert not any(need[name].when.holds({"trainer": {"v1": {"trainer_mode": "sync"}}}) for name in columns)


def test_a_switch_falls_back_to_verls_default() -> None:
    assert switch(None, "algorithm.adv_estimator") == "gae"
    assert switch({"algorithm": {"adv_estimator": "rloo"}}, "algorithm.adv_estimator") == "rloo"
    assert switch({"algorithm": {}}, "trainer.critic_warmup") == SWITCHES["trainer.critic_warmup"]


@dataclass
class Batch:
    keys: list[str]
    partition_id: str = "train"


@dataclass
class Owner:
    """The smallest trainer: a dict of {key: fields} for a queue."""

    rows: dict[str, set[str]]
    strict: bool = True
    config: dict = field(default_factory=lambda: {"algorithm": {"adv_estimator": "grpo"}})
    global_steps: int = 3
    timing_raw: dict[str, float] = field(default_factory=dict)
    records: list[StageRecord] = field(default_factory=list)
    signed: list[str] = field(default_factory=list)

    def on_stage(self, record: StageRecord) -> None:
        self.records.append(StageRecord(**vars(record)))

    def signed_as(self, name: str) -> AbstractContextManager[None]:
        self.signed.append(name)
        return nullcontext()

    def missing_cells(self, batch: Batch, fields: tuple[str, ...]) -> list[tuple[str, str]]:
        return [(key, name) for key in batch.keys for name in fields if name not in self.rows.get(key, set())]

    @stage("compute_advantage")
    def compute_advantage(self, batch: Batch, write: bool = True) -> Batch:
        for key in batch.keys if write else []:
            self.rows[key] |= {"advantages", "returns"}
        return batch

    @stage("submit_batch_to_rollout")
    def submit_batch_to_rollout(self, batch: TensorDict) -> int:
        return len(batch)

    @stage("sample")
    def sample(self, batch_size: int) -> Batch:
        return Batch(list(self.rows)[:batch_size])

    @stage("update_weights")
    def update_weights(self) -> None:
        pass


READS = {"uid", "response_mask", "rm_scores", "old_log_probs", "rollout_log_probs"}


def test_a_stage_is_timed_and_recorded() -> None:
    owner = Owner({"u_0_0": set(READS)})
    owner.compute_advantage(Batch(["u_0_0"]))
    begin, end = owner.records
    assert (begin.stage, begin.seconds, begin.num_rows, begin.global_steps) == ("compute_advantage", None, 1, 3)
    assert end.seconds is not None
    assert end.error is None
    assert owner.timing_raw["adv"] == pytest.approx(end.seconds)
    assert owner.signed == ["compute_advantage"]


def test_the_time_of_the_observers_is_no_time_of_the_stage() -> None:
    """Neither its length nor its begin: else its end would lie before the end of what it has waited for."""
    looked: list[float] = []

    class Watched(Owner):
        def on_stage(self, record: StageRecord) -> None:
            super().on_stage(record)
            time.sleep(0.001)
            looked.append(time.time())

    owner = Watched({"u_0_0": set(READS)})
    owner.compute_advantage(Batch(["u_0_0"]))
    begin, end = owner.records
    assert begin.started < looked[0] <= end.started


def test_rows_are_counted_in_a_handle_in_a_batch_of_prompts_and_else_in_the_result() -> None:
    owner = Owner({f"u_{i}_0": set(READS) for i in range(5)})
    owner.compute_advantage(Batch(["u_0_0", "u_1_0"]))
    owner.submit_batch_to_rollout(TensorDict({}, batch_size=[3]))
    owner.submit_batch_to_rollout(batch=TensorDict({}, batch_size=[4]))
    owner.sample(5)
    owner.update_weights()
    assert [record.num_rows for record in owner.records if record.seconds is not None] == [2, 3, 4, 5, 0]


def test_a_missing_read_names_field_key_and_writer_before_the_stage_runs() -> None:
    owner = Owner({"u_0_0": set(READS), "u_1_0": READS - {"rm_scores"}})
    with pytest.raises(ContractError) as caught:
        owner.compute_advantage(Batch(["u_0_0", "u_1_0"]))
    assert caught.value.cells == [("u_1_0", "rm_scores")]
    text = str(caught.value)
    assert "compute_advantage needs rm_scores on every row; 1 of 2 lacks it: u_1_0." in text
    assert "generate_sequences" in text
    assert "dropped the column for all 2 rows" in text
    assert "advantages" not in owner.rows["u_0_0"]
    assert owner.records[-1].error.startswith("ContractError")


def test_a_missing_write_is_found_after_the_stage() -> None:
    owner = Owner({"u_0_0": set(READS)})
    with pytest.raises(ContractError, match="should have written advantages on every row; 1 of 1 lacks it: u_0_0"):
        owner.compute_advantage(Batch(["u_0_0"]), write=False)


def test_a_field_that_no_row_has_needs_no_list_of_keys() -> None:
    owner = Owner({f"u_{i}_0": READS - {"rm_scores"} for i in range(9)})
    with pytest.raises(ContractError, match="none of the 9 rows has it"):
        owner.compute_advantage(Batch(list(owner.rows)))
    assert owner.timing_raw == {}  # a stage that failed took no time of the step


def test_without_strict_nothing_is_checked() -> None:
    owner = Owner({"u_0_0": set()}, strict=False)
    owner.compute_advantage(Batch(["u_0_0"]), write=False)
    assert owner.records[-1].error is None
