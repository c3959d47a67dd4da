"""A run that ends with an error: its reward function fails on an answer that holds no number. The folder stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kitlib.config import load_config
from kitlib.errors import KitError
from kitlib.lessons.expect import LessonError, captured_log
from kitlib.run import train

SOURCE = '''\
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1 for the right number behind ####."""
    answer = solution_str.split("####")[1]
    return float(int(answer) == int(ground_truth))
'''


def run_with_bad_reward(folder: Path, overrides: Sequence[str]) -> str:
    """Train with the reward function above until it fails; returns the message that the run ends with.

    The run folder is `folder / "run"`. Raises LessonError if the run does not fail.
    """
    file = folder / "my_reward.py"
    file.write_text(SOURCE, encoding="utf-8")
    reward = [f"reward.custom_reward_function.path={file}", "reward.custom_reward_function.name=compute_score"]
    config = load_config([*overrides, *reward, f"kitlib.run_dir={folder / 'run'}"])
    try:
        with captured_log():
            train(config, Console(quiet=True))
    except KitError as error:
        return f"{type(error).__name__}: {error}"
    raise LessonError("the reward function was expected to fail, and it did not")
