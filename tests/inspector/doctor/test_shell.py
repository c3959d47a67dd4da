"""In a shell the doctor's hints are commands, and each of them runs; in Python they are calls."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kitlib.cli import main
from kitlib.inspector import open_recording, record
from kitlib.inspector.doctor import check_run, doctor
from kitlib.inspector.doctor.finding import Finding
from kitlib.inspector.doctor.way_on import WayOn
from kitlib.transfer_queue import TransferQueue

from .cases import CASES, put

SETTINGS = """
data:
  train_batch_size: 4  # override
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: 4
"""
FAULTY = ("case_03a_field_missing_on_one_row", "case_23a_reward_on_masked_row", "case_26b_filter_evicts_every_group")


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long word would be broken between two lines."""
    monkeypatch.chdir(tmp_path)


def recorded(case: str) -> Path:
    tq = TransferQueue()
    put(CASES[case], tq)
    with record(tq, Path("a run") / "recording", ["rm_scores", "response_mask", "responses"], tick=60) as recorder:
        recorder.write("config.yaml", SETTINGS)
        recorder.mark("compute_old_log_prob", CASES[case]["global_steps"])
    return recorder.folder


@pytest.mark.parametrize("case", FAULTY)
def test_every_command_that_the_doctor_names_runs(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(case)
    assert main(["doctor", str(folder), "--stage", CASES[case]["stage"]]) == 1
    said = " ".join(capsys.readouterr().out.split())
    commands = re.findall(r"see (kitlib inspect .*?) for \w+", said)
    assert commands and "(tq" not in said and "(recording" not in said
    for command in commands:
        assert shlex.split(command)[2] == str(folder)
        assert main([*shlex.split(command)[1:], "--once"]) == 0
        shown = capsys.readouterr().out
        assert "this view needs" not in shown and "no view" not in shown
    with_calls = doctor(folder, stage=CASES[case]["stage"]).text(3000)
    assert "(recording" in with_calls and "kitlib inspect" not in with_calls


def test_the_seven_questions_name_commands(capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(FAULTY[0])
    assert main(["doctor", "--check", "data.train_batch_size=32", str(folder)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    command = re.search(r"See `(kitlib inspect .*?)`", said)
    assert command is not None and "config_table" not in said
    assert main([*shlex.split(command[1])[1:], "--once"]) == 0
    assert "data.train_batch_size" in capsys.readouterr().out
    in_python = check_run(open_recording(folder), overrides=["data.train_batch_size=32"])
    assert 'See config_table(config, "data.train_batch_size").' in in_python.answers[0].says


def test_a_file_with_settings_answers_the_first_question(capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = recorded(FAULTY[0]), Path("settings.yaml")
    file.write_text(SETTINGS.replace("size: 4", "size: 8"))
    main(["doctor", "--check", "data.train_batch_size=8", str(folder), "--config", str(file)])
    assert "1 override arrived" in capsys.readouterr().out
    (folder / "config.yaml").unlink()
    main(["doctor", "--check", str(folder)])
    assert "no config at hand: give --config FILE" in capsys.readouterr().out
    assert "no config at hand: pass config=" in check_run(open_recording(folder)).answers[0].says


@pytest.mark.parametrize(
    ("view", "keys", "command"),
    [
        ("presence", (), "presence --stage sample --partition val"),
        ("group_board", ("a_0_0",), "groups --partition val"),
        ("tokens", ("a b_0_0",), "tokens --key 'a b_0_0' --partition val"),
        ("batch_handle", ("a_0_0",), "key --key a_0_0 --partition val"),
        ("batch_handle", (), "presence --stage sample --partition val"),
        ("diff", (), "presence --stage sample --partition val"),
    ],
)
def test_a_view_of_the_doctor_as_a_command(view: str, keys: tuple[str, ...], command: str) -> None:
    finding = Finding("x", "error", "says", "way out", "val", keys, view=view)
    assert WayOn("--address auto").look(finding, "sample") == f"kitlib inspect --address auto {command}"
