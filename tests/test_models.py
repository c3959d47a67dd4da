"""kitlib.models: what loads, and what each unusable path is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kitlib.lessons.make_data.sft import build_model
from kitlib.lessons.make_data.tokenizer import IM_END, build_tokenizer
from kitlib.models import (
    ModelError,
    load_causal_lm,
    load_model_config,
    load_reward_model,
    load_tokenizer,
    load_value_model,
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of the shipped kind, with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture
def copied_folder(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of model_folder that a test may spoil."""
    for file in model_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_loads_a_folder_given_as_path_or_string(model_folder: Path) -> None:
    model = load_causal_lm(model_folder)
    assert model.dtype == torch.float32
    assert not model.training
    assert load_model_config(str(model_folder)).model_type == "qwen3"
    assert load_tokenizer(str(model_folder)).eos_token == IM_END


def test_dtype_is_what_was_asked_for(model_folder: Path) -> None:
    assert load_causal_lm(model_folder, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_home_directory_is_expanded(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model_folder.parent))
    assert load_model_config(f"~/{model_folder.name}").vocab_size == 64


def test_missing_pad_token_becomes_the_end_token(copied_folder: Path) -> None:
    edit_json(copied_folder / "tokenizer_config.json", pad_token=None)
    tokenizer = load_tokenizer(copied_folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == build_tokenizer().eos_token_id


def test_pad_token_of_its_own_is_kept(model_folder: Path) -> None:
    tokenizer = load_tokenizer(model_folder)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_neither_pad_nor_end_token_is_an_error(copied_folder: Path) -> None:
    edit_json(copied_folder / "tokenizer_config.json", pad_token=None, eos_token=None)
    with pytest.raises(ModelError, match="neither a padding token nor an end-of-sequence token"):
        load_tokenizer(copied_folder)


@pytest.mark.parametrize("load", [load_tokenizer, load_causal_lm, load_model_config])
@pytest.mark.parametrize("path", ["/no/such/model", "./no_such_model", "no_such_model", Path("no/such"), "a/b/c"])
def test_path_that_does_not_exist_is_named_and_no_hub_is_asked(
    load: object, path: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: pytest.fail("asked transformers"))
    monkeypatch.setattr(
        "transformers.AutoTokenizer.from_pretrained", lambda *_, **__: pytest.fail("asked transformers")
    )
    with pytest.raises(ModelError, match=f"no model folder '{path}'.*actor_rollout_ref.model.path"):
        load(path)  # type: ignore[operator]


def test_misspelt_name_in_an_existing_folder_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="no model folder 'models/typo'"):
        load_causal_lm("models/typo")


def test_hub_id_goes_to_transformers_and_its_failure_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def from_pretrained(name: str, local_files_only: bool) -> None:
        asked.append((name, local_files_only))
        raise OSError("cannot reach the hub\nsecond line")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", from_pretrained)
    with pytest.raises(ModelError, match="Hugging Face hub .* 'some-owner/some-model': cannot reach the hub$"):
        load_model_config("some-owner/some-model")
    assert asked == [("some-owner/some-model", False)]


def test_local_folder_is_read_without_asking_the_hub(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def from_pretrained(name: str, local_files_only: bool) -> str:
        asked.append(local_files_only)
        return name

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", from_pretrained)
    load_model_config(model_folder)
    assert asked == [True]


def test_file_instead_of_a_folder(model_folder: Path) -> None:
    with pytest.raises(ModelError, match="is a file"):
        load_causal_lm(model_folder / "config.json")


def test_folder_without_config_lists_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelError, match=r"no config.json \(it holds notes.txt\)"):
        load_causal_lm(tmp_path)


def test_folder_without_tokenizer(copied_folder: Path) -> None:
    for file in copied_folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match="holds no tokenizer"):
        load_tokenizer(copied_folder)


def test_folder_without_weights(copied_folder: Path) -> None:
    (copied_folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"no causal language model.*{copied_folder}"):
        load_causal_lm(copied_folder)


def test_broken_weights_file(copied_folder: Path) -> None:
    (copied_folder / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ModelError, match=f"no causal language model.*{copied_folder}"):
        load_causal_lm(copied_folder)


def test_broken_config(copied_folder: Path) -> None:
    (copied_folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not a valid JSON"):
        load_model_config(copied_folder)


def test_checkpoint_that_lacks_a_layer_is_refused(copied_folder: Path) -> None:
    config = json.loads((copied_folder / "config.json").read_text())
    edit_json(
        copied_folder / "config.json", num_hidden_layers=3, layer_types=[*config["layer_types"], "full_attention"]
    )
    with pytest.raises(ModelError, match="lacks 11 weights of Qwen3ForCausalLM, among them model.layers.2"):
        load_causal_lm(copied_folder)


def test_model_that_is_no_causal_lm(copied_folder: Path) -> None:
    (copied_folder / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ModelError, match="ViTConfig"):
        load_causal_lm(copied_folder)


def test_loading_prints_no_progress_bar(model_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_causal_lm(model_folder)
    assert "Loading weights" not in "".join(capfd.readouterr())


def test_a_critic_is_the_trunk_of_the_language_model_under_a_head_of_width_1(
    model_folder: Path, tmp_path: Path
) -> None:
    critic, policy = load_value_model(model_folder), load_causal_lm(model_folder)
    trunk = {name: value for name, value in critic.state_dict().items() if name.startswith("model.")}
    assert set(trunk) == {name for name in policy.state_dict() if name.startswith("model.")}
    assert all(torch.equal(value, policy.state_dict()[name]) for name, value in trunk.items())
    assert critic.score.out_features == 1
    assert critic.dropout.p == 0.0
    critic.save_pretrained(tmp_path)
    assert torch.equal(load_value_model(tmp_path).score.weight, critic.score.weight)  # a saved head is not made anew


def test_a_reward_model_needs_its_head_in_the_checkpoint(model_folder: Path) -> None:
    with pytest.raises(
        ModelError, match=r"reward.reward_model.model_path\) lacks 1 weights of .*among them score.weight"
    ):
        load_reward_model(model_folder)


def test_a_missing_critic_names_its_own_setting() -> None:
    with pytest.raises(ModelError, match=r"no model folder '/nowhere'; critic.model.path names"):
        load_value_model("/nowhere")
