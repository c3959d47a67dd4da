"""What a user can get wrong: one clear sentence that names the offender and the way out, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kitlib.cli import main

SMALL = (
    "data.train_batch_size=4",
    "data.val_max_samples=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "trainer.total_training_steps=2",
)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`run("a.b=1")` is `kitlib run` on a small config; gives what was said on stderr, and insists on exit status 2."""

    def refused(*overrides: str) -> str:
        status = main(["run", *SMALL, f"kitlib.run_dir={tmp_path / 'run'}", *overrides])
        said = capsys.readouterr().err
        assert status == 2, said
        assert "Traceback" not in said
        return said

    return refused


def reward_file(tmp_path: Path, body: str) -> list[str]:
    file = tmp_path / "my_reward.py"
    file.write_text(f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    {body}\n")
    return [f"reward.custom_reward_function.path={file}", "trainer.val_before_train=false"]


def test_a_typo_in_an_override(run) -> None:
    said = run("actor_rollout_ref.rollout.temprature=1")
    assert "actor_rollout_ref.rollout.temprature" in said
    assert "actor_rollout_ref.rollout.temperature" in said


def test_a_model_path_that_does_not_exist(run, tmp_path: Path) -> None:
    said = run(f"actor_rollout_ref.model.path={tmp_path / 'nowhere'}")
    assert str(tmp_path / "nowhere") in said
    assert "actor_rollout_ref.model.path" in said


def test_a_dataset_without_the_prompt_column(run, tmp_path: Path) -> None:
    file = tmp_path / "questions.parquet"
    pq.write_table(pa.table({"question": ["1+1=?"], "answer": ["2"]}), file)
    said = run(f"data.train_files={file}")
    assert "questions.parquet" in said
    assert "data.prompt_key" in said
    assert "question" in said


def test_a_mini_batch_larger_than_the_batch(run) -> None:
    said = run("data.train_batch_size=2")
    assert "data.train_batch_size" in said
    assert "ppo_mini_batch_size" in said


def test_a_batch_that_is_not_made_of_whole_fetches(run) -> None:
    said = run("data.gen_batch_size=3")
    assert "data.gen_batch_size" in said
    assert "data.train_batch_size" in said


def test_a_batch_larger_than_the_dataset(run) -> None:
    assert "data.train_batch_size" in run("data.train_max_samples=3")


def test_a_prompt_longer_than_allowed(run) -> None:
    said = run("data.max_prompt_length=4", "data.filter_overlong_prompts=false", "trainer.val_before_train=false")
    assert "data.max_prompt_length" in said
    assert "filter_overlong_prompts" in said


def test_a_reward_function_that_raises(run, tmp_path: Path) -> None:
    said = run(*reward_file(tmp_path, "raise KeyError('gold')"))
    assert "my_reward.py" in said
    assert "KeyError: 'gold'" in said


def test_a_reward_function_that_returns_nan(run, tmp_path: Path) -> None:
    said = run(*reward_file(tmp_path, "return float('nan')"))
    assert "my_reward.py" in said
    assert "nan" in said.lower()


def test_a_setting_this_version_does_not_act_on(run) -> None:
    assert "distillation.enabled=true is not supported" in run("distillation.enabled=true")


def test_a_run_folder_that_is_taken(run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    said = run()
    assert "already holds a run" in said and "no checkpoint (trainer.save_freq=-1)" in said
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "{}\n"


REWARD_OF_THE_SECOND_STEP_NEVER_COMES = """
import time
from pathlib import Path

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if Path({log!r}).exists():
        Path({sign!r}).touch()
        time.sleep(3600)
    return 1.0
"""


def test_ctrl_c_in_the_middle_of_a_step_leaves_no_process(tmp_path: Path) -> None:
    run_dir, sign, file = tmp_path / "run", tmp_path / "in_the_second_step", tmp_path / "my_reward.py"
    file.write_text(REWARD_OF_THE_SECOND_STEP_NEVER_COMES.format(log=str(run_dir / "metrics.jsonl"), sign=str(sign)))
    command = [sys.executable, "-m", "kitlib.cli", "run", *SMALL, f"kitlib.run_dir={run_dir}"]
    command += [f"reward.custom_reward_function.path={file}", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        while not sign.exists():
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130
    assert stderr.decode().strip().endswith("kitlib: interrupted")
    assert "Traceback" not in stderr.decode()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody of its session is left
    assert len((run_dir / "metrics.jsonl").read_text().splitlines()) == 1  # what was done is kept
