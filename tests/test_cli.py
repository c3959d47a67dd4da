"""The command line: what it prints, how it ends, and that an error is one sentence without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kitlib import __version__, cli
from kitlib.config import Config, load_config
from kitlib.errors import KitError


def kitlib(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "kitlib", *words], capture_output=True, text=True, timeout=280, check=False
    )


class Runner:
    """Stands in for a run: takes the settings, and raises what a test wants to see raised."""

    def __init__(self) -> None:
        self.seen: list[Config] = []
        self.raises: BaseException | None = None

    def train(self, config: Config, console: Console) -> None:
        self.seen.append(config)
        if self.raises is not None:
            raise self.raises


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    stand_in = Runner()
    module: Any = types.ModuleType("kitlib.run")
    module.train = stand_in.train
    monkeypatch.setitem(sys.modules, "kitlib.run", module)
    return stand_in


def test_version() -> None:
    result = kitlib("--version")
    assert (result.returncode, result.stdout) == (0, f"kitlib {__version__}\n")


def test_no_command_prints_the_usage() -> None:
    result = kitlib()
    assert result.returncode == 2
    assert "usage: kitlib" in result.stderr


def test_a_reader_that_has_seen_enough() -> None:
    """A pipe that is closed, as by `| head`, is no defect: nothing on stderr. Here it is closed before a word comes."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kitlib.cli", "config", "--yaml"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=280, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_run_hands_over_the_settings(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: {train_batch_size: 32, val_batch_size: 5}\n")
    assert cli.main(["run", "data.train_batch_size=64", "--config", str(path), "trainer.logger=[console]"]) == 0
    (config,) = runner.seen
    assert (config.data.train_batch_size, config.data.val_batch_size) == (64, 5)
    assert list(config.trainer.logger) == ["console"]


def test_a_typo_ends_with_status_2_and_one_sentence_before_anything_runs(runner: Runner) -> None:
    result = kitlib("run", "data.train_batchsize=3")
    assert result.returncode == 2
    assert result.stderr.startswith(
        "kitlib: data.train_batchsize is no setting of kitlib: did you mean data.train_batch_size"
    )
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_an_error_raised_on_purpose_is_a_sentence(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.raises = KitError("rows lack rm_scores")
    assert cli.main(["run"]) == 2
    assert capsys.readouterr().err == "kitlib: rows lack rm_scores\n"


def test_ctrl_c_ends_with_130(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    runner.raises = KeyboardInterrupt()
    assert cli.main(["run"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_defect_keeps_its_traceback(runner: Runner) -> None:
    runner.raises = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["run"])


def test_unknown_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "--confg", "x.yaml"])
    assert caught.value.code == 2
    assert "--confg" in capsys.readouterr().err


def test_config_prints_each_setting_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "data.train_batch_size=32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if "data.train_batch_size" in line)
    assert "32" in line
    assert "override" in line
    assert any("actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side" in line for line in lines)  # uncut


def test_config_as_yaml_is_taken_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["config", "--yaml", "data.train_batch_size=32"]) == 0
    path = tmp_path / "settings.yaml"
    path.write_text(capsys.readouterr().out)
    assert load_config(file=path).data.train_batch_size == 32
