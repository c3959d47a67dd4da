"""The tables say what the contract says, under the config, and nothing else."""

from __future__ import annotations

from kitlib.config import load_config
from kitlib.contract import STAGES, needs
from kitlib.lessons import crosswalk, three_questions

CONFIG = load_config()


def rows_of(view: object) -> dict[str, list[str]]:
    """{stage title: texts of its cells}"""
    [table] = view.model.tables  # type: ignore[attr-defined]
    return {str(row[0]): [str(cell) for cell in row] for row in table.rows}


def test_one_line_a_running_stage() -> None:
    running = [stage.title for stage in STAGES.values() if needs(stage.name, CONFIG).runs]
    assert list(rows_of(three_questions(CONFIG))) == running
    assert list(rows_of(crosswalk(CONFIG))) == running


def test_only_the_stages_asked_for() -> None:
    assert list(rows_of(three_questions(CONFIG, ["sample", "clear"]))) == ["sample", "clear"]


def test_fields_tags_and_settings() -> None:
    _title, meaning, takes, gives, settings = rows_of(three_questions(CONFIG))["metrics"]
    assert meaning == STAGES["compute_metrics"].meaning
    assert takes.startswith("prompts, responses, response_mask, advantages")
    assert "(num_turns)" in takes
    assert "tags is_padding" in takes
    assert gives == settings == "-"
    old = rows_of(three_questions(CONFIG))["old log-prob"]
    assert {"old_log_probs", "log_probs", "entropy"} == set(old[3].split(", "))
    assert "algorithm.rollout_correction.bypass_mode" in old[4]


def test_the_config_decides() -> None:
    with_reference = load_config({"actor_rollout_ref.actor.use_kl_loss": True})
    assert "ref_log_prob" not in rows_of(three_questions(CONFIG))["update actor"][2]
    assert "ref_log_prob" in rows_of(three_questions(with_reference))["update actor"][2]
    assert "reference" in rows_of(three_questions(with_reference))


def test_crosswalk_names_method_caller_and_verl() -> None:
    assert rows_of(crosswalk(CONFIG))["balance"][1:] == [
        "balance_batch",
        "PPOTrainer.step_once",
        STAGES["balance_batch"].verl,
    ]
