"""What is known to fail is said before any engine starts."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.unit.config.builders import CPT, DPO, GRPO, SFT, config, write_model, write_rows
from tests.unit.config.preflight import MESSAGES, TASK, TURNS, check, grpo, sft
from trinity.config.checks.rows import TRUTH_REWARDS
from trinity.config.checks.runtime import check_inputs, check_local_inputs
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward
from trinity.rft.checks.names import check_part_names
from trinity.rft.checks.parts import check_parts

PAIR = {
    "message": [{"role": "user", "content": "1+1="}],
    "chosen": [{"role": "assistant", "content": "2"}],
    "rejected": json.dumps([{"role": "assistant", "content": "3"}]),
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model")


def test_good_inputs_are_accepted(tmp_path: Path, model: str) -> None:
    path = write_rows(tmp_path / "train.jsonl", TASK)
    assert check(tmp_path, **grpo(model, {"path": path})) == ""


def test_every_mistake_of_all_stages_gets_a_line_once(tmp_path: Path, model: str) -> None:
    (Path(model) / "tokenizer.json").unlink()
    two: object = [{"stage_name": "a"}, {"stage_name": "b"}]
    said = check(tmp_path, **grpo(model, {"path": str(tmp_path / "none.jsonl")}), stages=two)
    assert [line.split(":")[0] for line in said.splitlines()] == [
        f"the model {model} has no tokenizer (such as tokenizer.json)",
        "stage `a`, taskset `train`",
        "stage `b`, taskset `train`",
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("{oops", "train.jsonl:1: not valid JSON"),
        ("[1, 2]", "is not an object with columns"),
        ('{"question": "x", "response": "2"}', "no column `prompt`, only `question`, `response`"),
        ('{"prompt": "x", "answer": "2"}', "no column `response`, only `prompt`, `answer`"),
    ],
)
def test_a_taskset_that_cannot_be_read_is_named(
    tmp_path: Path, model: str, lines: str, said: str
) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(lines)
    taskset: dict[str, object] = {"path": str(file), "default_reward_fn_type": "math_reward"}
    answer = check(tmp_path, **grpo(model, taskset))
    assert answer.startswith("stage `main`, taskset `train`: ")
    assert said in answer


def test_a_taskset_without_truths_says_so_with_an_empty_key(tmp_path: Path, model: str) -> None:
    path = write_rows(tmp_path / "train.jsonl", {"prompt": "x"})
    taskset: dict[str, object] = {"path": path, "format": {"response_key": ""}}
    assert check(tmp_path, **grpo(model, taskset)) == ""


@pytest.mark.parametrize("reward", ["countdown_reward", "exact_match_reward", "math_reward"])
def test_a_truth_is_asked_for_where_a_reward_compares_with_it(
    tmp_path: Path, model: str, reward: str
) -> None:
    path = write_rows(tmp_path / "train.jsonl", {"prompt": "x"})
    taskset: dict[str, object] = {"path": path}
    judged = {**taskset, "default_workflow_type": "rubric_judge_workflow"}
    assert check(tmp_path, **grpo(model, judged)) == ""
    assert (
        check(tmp_path, **grpo(model, {**taskset, "default_reward_fn_type": "format_reward"})) == ""
    )
    answer = check(tmp_path, **grpo(model, {**taskset, "default_reward_fn_type": reward}))
    assert answer.endswith(
        "rows have no column `response`, only `prompt`: set `format.response_key`"
    )
    named = {**taskset, "format": {"response_key": "answer"}}
    assert "no column `answer`" in check(tmp_path, **grpo(model, named))


def test_the_rewards_that_compare_are_known_by_name() -> None:
    asking = {
        name for name in REWARDS.builtins if BoundReward(REWARDS.get(name), {}, name).needs_truth
    }
    assert asking == TRUTH_REWARDS


def test_too_few_tasks_for_one_step_are_counted(tmp_path: Path, model: str) -> None:
    path = write_rows(tmp_path / "train.jsonl", TASK, TASK)
    said = check(tmp_path, **grpo(model, {"path": path}, total_steps=None))
    assert "its 2 rows make no train step with `buffer.batch_size: 4`" in said
    assert check(tmp_path, **grpo(model, {"path": path}, total_steps=None, total_epochs=2)) == ""


def test_a_submitted_taskset_has_no_file(tmp_path: Path, model: str) -> None:
    taskset: dict[str, object] = {"storage_type": "client", "path": None}
    assert check(tmp_path, **grpo(model, taskset)) == ""


def test_parquet_and_json_lists_are_read(tmp_path: Path, model: str) -> None:
    parquet = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"prompt": ["x"] * 4, "response": ["y"] * 4}), parquet
    )
    listed = tmp_path / "rows.json"
    listed.write_text(json.dumps([TASK] * 4))
    for file in (parquet, listed):
        assert check(tmp_path, **grpo(model, {"path": str(file)}, total_steps=None)) == ""
    parquet.write_bytes(b"no parquet")
    assert "not a readable parquet" in check(tmp_path, **grpo(model, {"path": str(parquet)}))


def test_a_directory_is_read_by_split(tmp_path: Path, model: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_rows(data / "train.jsonl", TASK)
    write_rows(data / "test-00000.jsonl", {"other": 1})
    assert check(tmp_path, **grpo(model, {"path": str(data)})) == ""
    assert "no column" in check(tmp_path, **grpo(model, {"path": str(data), "split": "test"}))
    missing = check(tmp_path, **grpo(model, {"path": str(data), "split": "dev"}))
    assert "belongs to split `dev`: it has test-00000.jsonl or train.jsonl" in missing


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (MESSAGES, ""),
        ({"message": json.dumps(TURNS)}, ""),
        ({"message": TURNS[:1]}, "its last message is by 'user'"),
        ({"message": "{"}, "column 'message': no JSON"),
        ({"message": [{"text": "x"}]}, "message 0 has no `role`"),
        ({"message": "text"}, "no JSON"),
        ({"message": 7}, "not a list of messages"),
        ({"messages": []}, "no column `message`, only `messages`: set `format.messages_key`"),
        (TASK, "or `format.prompt_type: plaintext`"),
    ],
)
def test_sft_rows_hold_messages(tmp_path: Path, model: str, row: object, said: str) -> None:
    path = write_rows(tmp_path / "sft.jsonl", row)
    answer = check(tmp_path, SFT, **sft(model, path=path))
    assert said in answer
    assert bool(answer) == bool(said)


def test_bad_rows_are_refused_unless_they_are_to_be_left_out(tmp_path: Path, model: str) -> None:
    bad: object = {"message": []}
    path = write_rows(tmp_path / "sft.jsonl", bad, MESSAGES)
    assert ":1, column 'message'" in check(tmp_path, SFT, **sft(model, path=path))
    assert check(tmp_path, SFT, **sft(model, path=path, on_bad_row="skip")) == ""
    none = write_rows(tmp_path / "none.jsonl", bad, bad)
    assert ":1, " in check(tmp_path, SFT, **sft(model, path=none, on_bad_row="skip"))


def test_sft_rows_hold_prompts_and_responses(tmp_path: Path, model: str) -> None:
    path = write_rows(tmp_path / "sft.jsonl", TASK)
    plaintext: object = {"prompt_type": "plaintext"}
    assert check(tmp_path, SFT, **sft(model, path=path, format=plaintext)) == ""


@pytest.mark.parametrize(
    ("row", "form", "said"),
    [
        ({"prompt": "1+1=", "chosen": "2", "rejected": "3"}, {"prompt_type": "plaintext"}, ""),
        ({"prompt": "x", "chosen": "2"}, {"prompt_type": "plaintext"}, "set `format.rejected_key`"),
        (
            {"prompt": "x", "good": "2", "rejected": "3"},
            {"prompt_type": "plaintext", "chosen_key": "good"},
            "",
        ),
        ({"prompt": "x", "chosen": "2", "rejected": "3"}, {}, "`format.prompt_type: plaintext`"),
        (
            {"prompt": MESSAGES, "chosen": "2", "rejected": "3"},
            {"prompt_type": "plaintext"},
            ":1, column 'prompt': it holds no text",
        ),
        ({**PAIR}, {}, ""),
        (
            {**PAIR, "rejected": [{"text": "x"}]},
            {},
            "column 'rejected': message 0 has no `role`",
        ),
    ],
)
def test_pairs_hold_a_prompt_and_two_answers(
    tmp_path: Path, model: str, row: object, form: dict[str, object], said: str
) -> None:
    path = write_rows(tmp_path / "dpo.jsonl", row)
    answer = check(tmp_path, DPO, **sft(model, path=path, format=form))
    assert said in answer
    assert bool(answer) == bool(said)


def test_texts_to_read_on_stand_in_one_column(tmp_path: Path, model: str) -> None:
    path = write_rows(tmp_path / "cpt.jsonl", {"text": "Once upon a time"})
    assert "set `format.prompt_key`" in check(tmp_path, CPT, **sft(model, path=path))
    column: object = {"prompt_key": "text"}
    assert check(tmp_path, CPT, **sft(model, path=path, format=column)) == ""


VERL_FORMAT: dict[str, object] = {
    "response_key": "reward_model.ground_truth",
    "reward_fn_key": "data_source",
}


def verl_row(**changes: object) -> object:
    row: dict[str, object] = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "1+1="}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
    }
    return row | changes


def verl(model: str, path: str, **changes: object) -> dict[str, object]:
    return grpo(model, {"path": path, "format": VERL_FORMAT, **changes})


def test_rows_of_verl_are_accepted(tmp_path: Path, model: str) -> None:
    given = verl(model, write_rows(tmp_path / "train.jsonl", verl_row()))
    assert check(tmp_path, **given) == ""
    check_part_names(plan_experiment(config(GRPO, **given)).stages)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (verl_row(prompt={"a": 1}), "column `prompt` is an object, neither a text nor messages"),
        (verl_row(prompt=None), "column `prompt` is null"),
        (verl_row(prompt=[{"text": "x"}]), "column `prompt`: message 0 has no `role`"),
        (verl_row(prompt="<image> what?", images=["x"]), "column `images`: set `format.image_key"),
        (
            verl_row(reward_model={"truth": "2"}),
            "only `data_source`, `prompt`, `reward_model`, ",
        ),
    ],
)
def test_the_types_of_columns_are_looked_at(
    tmp_path: Path, model: str, row: object, said: str
) -> None:
    path = write_rows(tmp_path / "train.jsonl", row)
    assert said in check(tmp_path, **verl(model, path))


def test_a_single_bad_task_is_left_to_the_run(tmp_path: Path, model: str) -> None:
    good, bad = verl_row(), verl_row(prompt=None)
    mostly_good = write_rows(tmp_path / "a.jsonl", good, bad, good)
    assert check(tmp_path, **verl(model, mostly_good)) == ""
    mostly_bad = write_rows(tmp_path / "b.jsonl", good, bad, bad)
    assert "column `prompt` is null" in check(tmp_path, **verl(model, mostly_bad))


@pytest.mark.parametrize(
    ("truth", "said"),
    [({"truth": "2"}, "set `format.response_key` to `response.truth`"), (None, "is null"), (2, "")],
)
def test_a_truth_that_no_reward_can_compare_is_named(
    tmp_path: Path, model: str, truth: object, said: str
) -> None:
    path = write_rows(tmp_path / "a.jsonl", {"prompt": "x", "response": truth})
    answer = check(tmp_path, **grpo(model, {"path": path, "default_reward_fn_type": "math_reward"}))
    assert said in answer
    assert bool(answer) == bool(said)
    by_workflow = check(
        tmp_path, **grpo(model, {"path": path, "default_workflow_type": "math_workflow"})
    )
    assert by_workflow == answer


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("my/data", "cannot be the name of a reward"),
        ("taco", "its answers are programs"),
        ("math_rewad", "close to it: math_reward"),
        ("", "rows without a name have no reward: set `default_reward_fn_type`"),
    ],
)
def test_a_reward_that_rows_name_is_looked_up(
    tmp_path: Path, model: str, source: str, said: str
) -> None:
    path = write_rows(tmp_path / "train.jsonl", verl_row(data_source=source))
    with pytest.raises(UserError, match=rf"{said}.* in column `data_source`"):
        check_part_names(plan_experiment(config(GRPO, **verl(model, path))).stages)


def test_arguments_that_the_reward_of_a_row_does_not_take_are_refused(
    tmp_path: Path, model: str
) -> None:
    path = write_rows(tmp_path / "train.jsonl", verl_row(), verl_row(data_source="math_dapo"))
    given = verl(model, path, reward_fn_args={"penalty_factor": 0.5})
    with pytest.raises(UserError, match=r"gsm8k_reward refuses its reward_fn_args.*`data_source`"):
        check_parts(plan_experiment(config(GRPO, **given)).stages)


def test_a_file_of_data_juicer_that_is_not_there_is_told(tmp_path: Path, model: str) -> None:
    path = write_rows(tmp_path / "train.jsonl", {"prompt": "x", "response": "y"})

    def checked(file: Path) -> None:
        given = {
            **grpo(model, {"path": path}, total_steps=1, batch_size=1),
            "checkpoint_root_dir": str(tmp_path),
            "service": {"data_juicer": {"server_url": "http://127.0.0.1:8005"}},
            "data_processor": {"task_pipeline": {"config_path": str(file)}},
        }
        check_inputs(plan_experiment(config(GRPO, **given)))

    with pytest.raises(UserError, match=r"task_pipeline\.config_path: .*recipe\.yaml` is no file"):
        checked(tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text("process: []")
    checked(tmp_path / "recipe.yaml")


def test_data_that_are_here_are_checked_with_the_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "train.jsonl", {"question": "x"})
    with pytest.raises(UserError, match="no column `prompt`"):
        check_local_inputs(
            plan_experiment(config(GRPO, **grpo("/not/here", {"path": path}))).stages
        )
    check_local_inputs(
        plan_experiment(config(GRPO, **grpo("/not/here", {"path": "/not/here.json"}))).stages
    )
