"""kitlib.dataset: rows and batches, limits on prompt length, resuming, and what each unusable input is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from kitlib.config import Config, load_config
from kitlib.dataset import DatasetError, RLHFDataset, collate_fn, create_dataloaders
from kitlib.lessons.make_data.tokenizer import build_tokenizer
from kitlib.user_code import UserCodeError

TOKENIZER = build_tokenizer()
SHORT, LONG = "1+2=?", "1+2+3+4+5+6+7+8=?"  # 13 and 25 tokens with the chat template


def row(question: str = SHORT, index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": question}],
        "data_source": "test",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {"split": "train", "index": index},
        **more,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def dataset(path: Path | list[Path], max_samples: int = -1, tools: list[Any] | None = None, **data: Any) -> RLHFDataset:
    return RLHFDataset(path, TOKENIZER, SimpleNamespace(**data), max_samples, tools)


def run_config(train: Path, val: Path | None = None, **data: Any) -> Config:
    settings = {"train_files": str(train), "val_files": str(val or train), **data}
    overrides = {f"data.{name}": value for name, value in settings.items()}
    return load_config({**overrides, "actor_rollout_ref.actor.ppo_mini_batch_size": 1})


@pytest.fixture
def file_of_20(tmp_path: Path) -> Path:
    return write(tmp_path / "train.parquet", [row(f"{i}+1=?", i) for i in range(20)])


def test_row_is_the_file_row_plus_what_verl_adds(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [row(index=7, agent_name="tool_agent", mine=3)])
    (item,) = list(dataset(path))
    dummy = item.pop("dummy_tensor")
    assert item == {
        **row(index=7, agent_name="tool_agent", mine=3),
        "raw_prompt": [{"role": "user", "content": SHORT}],
        "index": 7,
        "tools_kwargs": {},
        "interaction_kwargs": {},
    }
    assert dummy.dtype == torch.uint8
    assert dummy.tolist() == [0]


def test_kwargs_of_tools_and_interactions_come_from_extra_info(tmp_path: Path) -> None:
    extra = {"index": 1, "tools_kwargs": {"calculator": {"seed": 1}}, "interaction_kwargs": {"name": "quiz"}}
    (item,) = list(dataset(write(tmp_path / "f.parquet", [{**row(), "extra_info": extra}])))
    assert (item["tools_kwargs"], item["interaction_kwargs"]) == (extra["tools_kwargs"], extra["interaction_kwargs"])


@pytest.mark.parametrize("extra_info", [{}, {"extra_info": None}])
def test_extra_info_may_be_absent(tmp_path: Path, extra_info: dict[str, None]) -> None:
    bare = {"prompt": row()["prompt"], "data_source": "test", **extra_info}
    (item,) = list(dataset(write(tmp_path / "f.parquet", [bare])))
    assert (item["extra_info"], item["index"]) == ({}, 0)


def test_changing_a_row_does_not_change_the_dataset(file_of_20: Path) -> None:
    rows = dataset(file_of_20)
    rows[0]["raw_prompt"].append({"role": "assistant", "content": "1"})
    assert len(rows[0]["raw_prompt"]) == 1


def test_several_files_follow_each_other_and_missing_columns_are_none(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", [row(index=1, level=1)])
    second = write(tmp_path / "b.parquet", [row(index=2)])
    assert [(item["index"], item["level"]) for item in dataset([first, second])] == [(1, 1), (2, None)]


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", [row(level=1)])
    second = write(tmp_path / "b.parquet", [row(level="hard")])
    with pytest.raises(DatasetError, match=r"a.parquet, .*b.parquet cannot be joined.*level"):
        dataset([first, second])


# overlong prompts


@pytest.fixture
def file_with_long(tmp_path: Path) -> Path:
    return write(tmp_path / "f.parquet", [row(SHORT, 0), row(LONG, 1), row(SHORT, 2)])


def test_overlong_prompts_are_refused_by_default(file_with_long: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"1 of 3 prompts of .*max_prompt_length=24 .*longest has 25, the first is row 1"
    ):
        dataset(file_with_long, max_prompt_length=24)


def test_prompt_of_exactly_the_limit_is_allowed(file_with_long: Path) -> None:
    assert len(dataset(file_with_long, max_prompt_length=25)) == 3


def test_overlong_prompts_are_filtered_on_demand(file_with_long: Path) -> None:
    kept = dataset(file_with_long, max_prompt_length=24, filter_overlong_prompts=True)
    assert [item["index"] for item in kept] == [0, 2]
    assert kept.num_filtered == 1


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
def test_overlong_prompts_are_let_through_with_a_warning(file_with_long: Path, truncation: str) -> None:
    with pytest.warns(UserWarning, match=f"1 of 3 prompts.*agent loop will cut them .data.truncation={truncation}"):
        assert len(dataset(file_with_long, max_prompt_length=24, truncation=truncation)) == 3


def test_unknown_truncation_is_refused_even_if_nothing_is_overlong(file_with_long: Path) -> None:
    with pytest.raises(DatasetError, match="data.truncation='rigth' is none of error, left, right, middle"):
        dataset(file_with_long, truncation="rigth")


def test_filter_that_leaves_nothing(file_with_long: Path) -> None:
    with pytest.raises(DatasetError, match=r"no prompt left .* all 3 are longer than data.max_prompt_length=5"):
        dataset(file_with_long, max_prompt_length=5, filter_overlong_prompts=True)


def test_template_arguments_and_tools_count_for_the_length(file_with_long: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ greeting }}{% for tool in tools %}{{ tool.name }}{% endfor %}"
    data = SimpleNamespace(max_prompt_length=9, apply_chat_template_kwargs={"greeting": "hello"})
    tools = [{"name": "wxyz"}]
    assert len(RLHFDataset(file_with_long, tokenizer, data, tools=tools)) == 3
    data.max_prompt_length = 8
    with pytest.raises(DatasetError, match="the longest has 9"):
        RLHFDataset(file_with_long, tokenizer, data, tools=tools)


def test_template_that_fails_names_the_row(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% if messages[0].content == '9' %}{{ raise_exception('no nines') }}{% endif %}"
    path = write(tmp_path / "f.parquet", [row("8"), row("9")])
    with pytest.raises(DatasetError, match="chat template fails on row 1 of .*no nines"):
        RLHFDataset(path, tokenizer, SimpleNamespace())


# unusable files


def test_missing_file() -> None:
    with pytest.raises(DatasetError, match=r"no file '/no/such.parquet'; data.train_files"):
        dataset(Path("/no/such.parquet"))


def test_no_file_at_all() -> None:
    with pytest.raises(DatasetError, match="no data file is given"):
        dataset([])


def test_file_that_is_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_text("prompt,answer\n1,2\n")
    with pytest.raises(DatasetError, match=r"f.parquet' is not a parquet file"):
        dataset(tmp_path / "f.parquet")


def test_missing_prompt_column_names_file_columns_and_key(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [{"question": "1+2=?", "data_source": "x"}])
    with pytest.raises(
        DatasetError, match=r"f.parquet' has no column 'prompt'; it has question, data_source.*data.prompt_key"
    ):
        dataset(path)


def test_prompt_key_chooses_the_column(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", [{"question": [{"role": "user", "content": "5"}]}])
    assert dataset(path, prompt_key="question")[0]["raw_prompt"][0]["content"] == "5"


@pytest.mark.parametrize("prompt", ["1+2=?", [{"content": "1+2=?"}], None])
def test_prompt_that_is_no_chat_names_the_row(tmp_path: Path, prompt: Any) -> None:
    path = write(tmp_path / "f.parquet", [{"prompt": prompt, "x": 1}])
    with pytest.raises(DatasetError, match=r"row 0 of .*'prompt' .data.prompt_key. must hold chat messages"):
        dataset(path)


def test_file_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": pa.array([], pa.list_(pa.string()))}), tmp_path / "f.parquet")
    with pytest.raises(DatasetError, match="no prompt left .* there are no rows"):
        dataset(tmp_path / "f.parquet")


def test_images_are_refused_and_an_empty_column_of_them_is_not(tmp_path: Path) -> None:
    rows = dataset(write(tmp_path / "f.parquet", [row(images=[]), row(images=["cat.png"])]))
    assert "images" not in rows[0]
    with pytest.raises(DatasetError, match="row 1 of .* has images"):
        rows[1]


# samples and batches


def test_max_samples_takes_the_first_rows_or_random_ones(file_of_20: Path) -> None:
    first = [item["index"] for item in dataset(file_of_20, max_samples=5)]
    chosen = [item["index"] for item in dataset(file_of_20, max_samples=5, shuffle=True, seed=3)]
    again = [item["index"] for item in dataset(file_of_20, max_samples=5, shuffle=True, seed=3)]
    assert first == [0, 1, 2, 3, 4]
    assert chosen == again != sorted(chosen)[:5]
    assert len(set(chosen)) == 5
    assert len(dataset(file_of_20, max_samples=50)) == 20


def test_collate_stacks_tensors_and_lists_objects() -> None:
    batch = collate_fn([{"t": torch.tensor([1]), "o": {"a": 1}}, {"t": torch.tensor([2]), "o": None}])
    assert batch["t"].tolist() == [[1], [2]]
    assert batch["o"] == [{"a": 1}, None]


def test_collate_names_the_columns_that_differ() -> None:
    with pytest.raises(DatasetError, match=r"row 1 .* \['level'\]"):
        collate_fn([{"a": 1}, {"a": 1, "level": 2}])


def indices(loader: Any) -> list[list[int]]:
    return [batch["index"] for batch in loader]


def test_train_drops_the_last_batch_and_val_keeps_all(file_of_20: Path) -> None:
    train, val = create_dataloaders(run_config(file_of_20, train_batch_size=8), TOKENIZER)
    assert [len(batch) for batch in indices(train)] == [8, 8]
    assert indices(val) == [list(range(20))]


def test_val_batch_size_and_sample_limits(file_of_20: Path) -> None:
    config = run_config(
        file_of_20, train_batch_size=2, train_max_samples=4, val_batch_size=3, val_max_samples=4, shuffle=False
    )
    train, val = create_dataloaders(config, TOKENIZER)
    assert indices(train) == [[0, 1], [2, 3]]
    assert indices(val) == [[0, 1, 2], [3]]


def test_gen_batch_size_wins_over_train_batch_size(file_of_20: Path) -> None:
    train, _ = create_dataloaders(run_config(file_of_20, train_batch_size=8, gen_batch_size=4), TOKENIZER)
    assert [len(batch) for batch in indices(train)] == [4] * 5


def test_shuffle_follows_the_seed_and_differs_between_epochs(file_of_20: Path) -> None:
    def epochs(seed: int) -> list[list[list[int]]]:
        train, _ = create_dataloaders(run_config(file_of_20, train_batch_size=10, seed=seed), TOKENIZER)
        return [indices(train), indices(train)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    first, second = epochs(1)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(20))


@pytest.mark.parametrize("num_batches", [3, 5, 7])  # inside the first epoch, at its end, inside the second
@pytest.mark.parametrize("shuffle", [True, False])
def test_state_dict_resumes_where_it_was_taken(file_of_20: Path, num_batches: int, shuffle: bool) -> None:
    def endless(loader: Any) -> Iterator[list[int]]:
        while True:
            yield from indices_lazily(loader)

    def indices_lazily(loader: Any) -> Iterator[list[int]]:
        for batch in loader:
            yield batch["index"]

    config = run_config(file_of_20, train_batch_size=4, shuffle=shuffle, seed=5)
    train, _ = create_dataloaders(config, TOKENIZER)
    batches = endless(train)
    for _ in range(num_batches):
        next(batches)
    state = train.state_dict()
    expected = [next(batches) for _ in range(6)]

    resumed, _ = create_dataloaders(config, TOKENIZER)
    resumed.load_state_dict(state)
    batches = endless(resumed)
    assert [next(batches) for _ in range(6)] == expected


@pytest.mark.parametrize("key", ["train_batch_size", "gen_batch_size"])
def test_batch_larger_than_the_dataset(file_of_20: Path, key: str) -> None:
    config = run_config(file_of_20, **{"train_batch_size": 21, key: 21})
    with pytest.raises(DatasetError, match=f"data.{key}=21 does not make one batch: data.train_files has 20 prompts"):
        create_dataloaders(config, TOKENIZER)


def test_too_large_batch_mentions_what_was_filtered(file_with_long: Path) -> None:
    config = run_config(file_with_long, train_batch_size=3, max_prompt_length=24, filter_overlong_prompts=True)
    with pytest.raises(DatasetError, match="2 prompts, 1 more were dropped by data.filter_overlong_prompts"):
        create_dataloaders(config, TOKENIZER)


def test_making_loaders_warns_of_nothing(file_of_20: Path, recwarn: pytest.WarningsRecorder) -> None:
    create_dataloaders(run_config(file_of_20), TOKENIZER)
    assert [str(warning.message) for warning in recwarn] == []


def test_dataset_class_of_ones_own(file_of_20: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from kitlib.dataset import RLHFDataset\n"
        "class Shouting(RLHFDataset):\n"
        "    def __getitem__(self, item):\n"
        "        return {**super().__getitem__(item), 'loud': True}\n"
        "NOT_A_CLASS = 1\n"
    )
    own = {"custom_cls.path": str(tmp_path / "mine.py"), "custom_cls.name": "Shouting"}
    train, _ = create_dataloaders(run_config(file_of_20, **own), TOKENIZER)
    assert next(iter(train))["loud"] == [True] * 16
    with pytest.raises(DatasetError, match="NOT_A_CLASS is no torch.utils.data.Dataset"):
        create_dataloaders(run_config(file_of_20, **{**own, "custom_cls.name": "NOT_A_CLASS"}), TOKENIZER)
    with pytest.raises(UserCodeError, match="Whispering"):
        create_dataloaders(run_config(file_of_20, **{**own, "custom_cls.name": "Whispering"}), TOKENIZER)


@pytest.mark.parametrize(
    ("package", "message"), [("pyarrow", "pip install pyarrow"), ("torchdata", "pip install torchdata")]
)
def test_missing_package_is_named(
    file_of_20: Path, monkeypatch: pytest.MonkeyPatch, package: str, message: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DatasetError, match=message):
        create_dataloaders(run_config(file_of_20), TOKENIZER)
