"""load_config: words, mappings and files; types; did-you-mean; interpolation; origins."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from kitlib.config import ConfigError, UnknownKeyError, load_config
from kitlib.errors import KitError


def failure(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(words)
    return str(caught.value)


def test_words_are_read_as_yaml() -> None:
    config = load_config(
        [
            "data.train_batch_size=32",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            "actor_rollout_ref.rollout.top_p=1",
            "trainer.logger=[console]",
            "data.train_files=['a.parquet', 'b.parquet']",
            "critic.enable=null",
            "reward.custom_reward_function.path=a=b.py",
        ]
    )
    assert config.data.train_batch_size == 32
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert isinstance(config.actor_rollout_ref.rollout.top_p, float)
    assert list(config.trainer.logger) == ["console"]
    assert list(config.data.train_files) == ["a.parquet", "b.parquet"]
    assert config.critic.enable is None
    assert config.reward.custom_reward_function.path == "a=b.py"


@pytest.mark.parametrize(
    "overrides", [{"data.train_batch_size": 32}, {"data": {"train_batch_size": 32}}, ["data.train_batch_size=32"]]
)
def test_a_mapping_means_the_same_as_words(overrides: object) -> None:
    config = load_config(overrides)  # type: ignore[arg-type]
    assert config.data.train_batch_size == 32
    assert config.data.max_prompt_length == load_config().data.max_prompt_length


def test_a_later_word_wins() -> None:
    assert load_config(["data.train_batch_size=32", "data.train_batch_size=64"]).data.train_batch_size == 64


def test_values_follow_other_settings() -> None:
    config = load_config(["data.max_response_length=100", "data.val_batch_size=${data.train_batch_size}"])
    assert config.actor_rollout_ref.rollout.response_length == 100
    assert config.data.val_batch_size == config.data.train_batch_size


def test_file_then_words(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data:\n  train_batch_size: 32\n  val_batch_size: 7\n")
    config = load_config(["data.train_batch_size=64"], file=path)
    assert (config.data.train_batch_size, config.data.val_batch_size) == (64, 7)
    assert str(config.origin("data.train_batch_size")) == "override"
    assert str(config.origin("data.val_batch_size")) == f"file: {path}"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("data.train_batchsize=3", "data.train_batch_size"),  # spelling
        ("rollout.n=3", "actor_rollout_ref.rollout.n"),  # a part of the path
        ("algorithm.train_batch_size=3", "data.train_batch_size"),  # another group
        ("trainer.balance_batch=true", "verl 0.9.1"),  # verl's, of no use here
        ("wibble=3", "kitlib config"),  # like nothing
    ],
)
def test_an_unknown_setting_is_named_with_what_was_meant(word: str, hint: str) -> None:
    with pytest.raises(UnknownKeyError) as caught:
        load_config([word])
    assert word.split("=")[0] in str(caught.value)
    assert hint in str(caught.value)
    assert isinstance(caught.value, KitError)


def test_every_unknown_setting_of_a_file_is_listed_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "typos.yaml"
    path.write_text("data:\n  trian_files: x\ntrainer:\n  totl_epochs: 3\n")
    with pytest.raises(UnknownKeyError) as caught:
        load_config(file=path)
    for text in ("data.trian_files", "data.train_files", "trainer.totl_epochs", "trainer.total_epochs", str(path)):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("data.train_batch_size=abc", "int"),
        ("data.train_batch_size=true", "int"),
        ("data.train_batch_size=2.5", "int"),
        ("data.train_batch_size=null", "int"),
        ("data.train_batch_size={a: 1}", "int"),
        ("data.shuffle=1", "bool"),
        ("actor_rollout_ref.actor.optim.lr=fast", "float"),
        ("data.seed=x", "int or null"),
        ("trainer.logger=3", "list or str"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_the_type_that_fits(word: str, expected: str) -> None:
    message = failure(word)
    assert word.split("=")[0] in message
    assert f"expected {expected}" in message


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("data.train_batch_size", "expected key=value"),
        ("=3", "expected key=value"),
        ("data=3", "group of settings"),
        ("data.seed=[1", "no YAML"),
        ("data.seed=${no.such}", "no.such"),
        ("data.seed=${data.seed}", "data.seed"),
        ("kitlib.run_dir=${no.such}", "no.such"),
        ("+data.x=3", "data.x"),
        ("data.apply_chat_template_kwargs=3", "expected a group"),
    ],
)
def test_a_word_that_makes_no_sense_is_refused_in_one_sentence(word: str, text: str) -> None:
    message = failure(word)
    assert text in message
    assert "\n" not in message


def test_one_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="one text"):
        load_config("data.train_batch_size=3")


def test_open_groups_take_any_name_with_and_without_plus() -> None:
    config = load_config(
        ["+trainer.v1.sampler.sampler_kwargs.alpha=0.5", "data.apply_chat_template_kwargs.thinking=false"]
    )
    assert dict(config.trainer.v1.sampler.sampler_kwargs) == {"alpha": 0.5}
    assert dict(config.data.apply_chat_template_kwargs) == {"thinking": False}
    assert config.origin("trainer.v1.sampler.sampler_kwargs").kind == "override"


@pytest.mark.parametrize("text", ["data: [1", "- a\n- b\n", "data: 3\n", "data:\n  a: ${\n"])
def test_a_file_that_is_no_config_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.yaml"):
        load_config(file=path)


def test_a_file_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        load_config(file="nowhere.yaml")


def test_where_values_come_from() -> None:
    config = load_config(["data.max_prompt_length=50"])
    assert str(config.origin("data.max_prompt_length")) == "override"
    assert str(config.origin("data.shuffle")) == "default"
    assert str(config.origin("actor_rollout_ref.rollout.prompt_length")) == "derived: follows data.max_prompt_length"
    with pytest.raises(UnknownKeyError, match="data.shuffle"):
        config.origin("data.shufle")


def test_single_prompt_fetches_where_groups_are_replaced(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(["algorithm.filter_groups.enable=true", "data.gen_batch_size=5"])
    assert config.data.gen_batch_size == 1
    assert str(config.origin("data.gen_batch_size")) == "derived: algorithm.filter_groups.enable=true"
    assert "data.gen_batch_size=5 becomes 1" in caplog.text
    assert load_config().data.gen_batch_size is None


def test_a_config_is_read_only_except_through_update() -> None:
    config = load_config()
    with pytest.raises(Exception, match="read-only"):
        config.data.train_batch_size = 3
    config.update("actor_rollout_ref.actor.optim.total_training_steps", 455, "rows / train_batch_size * total_epochs")
    assert config.actor_rollout_ref.actor.optim.total_training_steps == 455
    assert config.origin("actor_rollout_ref.actor.optim.total_training_steps").kind == "derived"
    with pytest.raises(UnknownKeyError, match="data.train_batch_size"):
        config.update("data.train_batchsize", 3, "typo")
    with pytest.raises(ConfigError, match="data.train_batch_size"):
        config.update("data.train_batch_size", 3, "smaller than a mini-batch")


def test_select_needs_a_known_name_or_a_default() -> None:
    config = load_config()
    assert config.select("data.train_batch_size") == 16
    assert config.select("data.no_such", 5) == 5
    assert config.select("data.gen_batch_size", 5) is None  # null is a value
    with pytest.raises(UnknownKeyError, match="data.no_such"):
        config.select("data.no_such")
    with pytest.raises(AttributeError, match="trainer"):
        _ = config.trianer
    assert not hasattr(config, "trianer")


def test_a_config_survives_copy_and_pickle() -> None:
    config = load_config(["data.train_batch_size=32"])
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin.to_dict() == config.to_dict()
        assert twin.origin("data.train_batch_size") == config.origin("data.train_batch_size")


def test_written_yaml_loads_to_the_same_settings(tmp_path: Path) -> None:
    config = load_config(["data.train_batch_size=32", "+trainer.v1.sampler.sampler_kwargs.names=[a, 'b: c']"])
    path = tmp_path / "resolved.yaml"
    path.write_text(config.to_yaml())
    assert load_config(file=path).to_dict() == config.to_dict()
    assert "  train_batch_size: 32  # override\n" in config.to_yaml()
    assert str(config) == config.to_yaml()
    assert "data.train_batch_size=32" in repr(config)
