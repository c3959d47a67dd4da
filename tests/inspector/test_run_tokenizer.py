"""Text of tokens without a tokenizer at hand: the one of the model that the run's settings name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from kitlib import cli
from kitlib.inspector import open_recording, record, tokens
from kitlib.inspector.run_tokenizer import NoTokenizerError, find_tokenizer, open_tokenizer
from kitlib.models import load_tokenizer
from kitlib.paths import data_path
from kitlib.transfer_queue import TransferQueue
from tests.inspector.queues import tag

MODEL = data_path("models/mult_tool")
TEXT = "12*59=? <tool_call>12*59</tool_call><|im_end|>"
FIELDS = ["prompts", "responses", "response_mask"]


@pytest.fixture
def queue() -> TransferQueue:
    """One row whose response is TEXT."""
    ids = open_tokenizer(MODEL).encode(TEXT, add_special_tokens=False)
    row = {"prompts": torch.tensor(ids[:4]), "responses": torch.tensor(ids), "response_mask": torch.ones(len(ids))}
    tq = TransferQueue()
    tq.kv_put("f3a1_3_0", "train", row, tag())
    return tq


def recorded(queue: TransferQueue, run_dir: Path, model: Path) -> Path:
    with record(queue, run_dir / "recording", FIELDS, tick=60) as recorder:
        recorder.write("config.yaml", f"actor_rollout_ref:\n  model:\n    path: {model}\n    tokenizer_path: null\n")
        recorder.mark("sample", 1)
    return run_dir / "recording"


def test_the_file_alone_reads_as_transformers_does() -> None:
    whole, alone = load_tokenizer(MODEL), open_tokenizer(MODEL)
    ids = alone.encode(TEXT, add_special_tokens=False)
    assert ids == whole.encode(TEXT, add_special_tokens=False) and len(ids) > 10
    assert alone.decode(ids) == whole.decode(ids)


def test_a_recording_names_its_model(queue: TransferQueue, tmp_path: Path) -> None:
    recording = open_recording(recorded(queue, tmp_path, MODEL))
    for source in (recording.last, recording.find("sample", 1)):
        text = tokens(source, "f3a1_3_0").text(200)
        assert "<tool_call>12*59</tool_call><|im_end|>" in text and f"text by the tokenizer of {MODEL}" in text
        assert "gives the same" in text


def test_a_live_queue_takes_the_model_of_the_config_or_of_the_caller(queue: TransferQueue) -> None:
    config = {"actor_rollout_ref": {"model": {"path": str(MODEL)}}}
    assert "<tool_call>" in tokens(queue, "f3a1_3_0", config=config).text(200)
    assert "<tool_call>" in tokens(queue, "f3a1_3_0", MODEL).text(200)


def test_without_one_ids_are_shown_and_the_way_to_one(queue: TransferQueue, tmp_path: Path) -> None:
    said = tokens(queue, "f3a1_3_0").text(400)
    assert "tokens are shown as ids: nothing names a model; give one" in said and "<tool_call>" not in said
    assert "--tokenizer PATH" in said and "tokenizer=" in said
    gone = open_recording(recorded(queue, tmp_path, tmp_path / "gone")).last
    said = tokens(gone, "f3a1_3_0").text(400)
    assert f"actor_rollout_ref.model.path: '{tmp_path / 'gone'}' is no folder on this machine" in said


def test_the_trained_model_beside_a_recording_that_has_moved(queue: TransferQueue, tmp_path: Path) -> None:
    folder = recorded(queue, tmp_path, tmp_path / "gone")
    (tmp_path / "model").mkdir()
    shutil.copy(MODEL / "tokenizer.json", tmp_path / "model")
    found = find_tokenizer(open_recording(folder).last)
    assert found.says == f"text by the tokenizer of {tmp_path / 'model'}"


@pytest.mark.parametrize(
    ("text", "message"), [(None, "holds no tokenizer.json"), ("{", "is no tokenizer that can be read")]
)
def test_a_folder_without_one_is_told(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(NoTokenizerError, match=message):
        open_tokenizer(tmp_path)


def test_the_command(queue: TransferQueue, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named, gone = (str(recorded(queue, tmp_path / name, path)) for name, path in (("a", MODEL), ("b", tmp_path)))
    words = ["inspect", "tokens", "--once", "--key", "f3a1_3_0"]
    assert cli.main([*words, named]) == 0 and "<tool_call>" in capsys.readouterr().out
    assert cli.main([*words, gone]) == 0 and "--tokenizer PATH" in capsys.readouterr().out
    assert cli.main([*words, gone, "--tokenizer", str(MODEL)]) == 0 and "<tool_call>" in capsys.readouterr().out
    assert cli.main([*words, named, "--tokenizer", str(tmp_path)]) == 2
    assert "holds no tokenizer.json" in capsys.readouterr().err
    assert cli.main(["inspect", "tokens", "--once", named]) == 0
    assert "needs --key, such as f3a1_3_0" in capsys.readouterr().out
