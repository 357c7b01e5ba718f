"""`trinity config init` looks into the model and the data, and its file passes the check."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.model_free.model import write_model
from trinity.cli.config_init import GivenOptions, fitting_reward, look_into
from trinity.cli.main import make_app
from trinity.config.check import check_file
from trinity.errors import UserError
from trinity.types import JsonValue

SUMS = [{"problem": f"{i}+{i}=", "solution": str(2 * i)} for i in range(40)]


def data(folder: Path, rows: Sequence[object] = SUMS, *, splits: Sequence[str] = ("train",)) -> str:
    folder.mkdir(exist_ok=True)
    for split in splits:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return str(folder)


def model(folder: Path, positions: int) -> str:
    directory = Path(write_model(folder))
    keys = json.loads((directory / "config.json").read_text())
    keys["max_position_embeddings"] = positions
    (directory / "config.json").write_text(json.dumps(keys))
    return str(directory)


def drafted(folder: Path, *words: str) -> tuple[str, str]:
    """Output and file of the command."""
    folder.mkdir(exist_ok=True)
    file = folder / "new.yaml"
    command = ("config", "init", str(file), "--name", "n", *words)
    outcome = CliRunner().invoke(make_app(command), list(command))
    if outcome.exception is not None:
        raise outcome.exception
    return outcome.output, file.read_text()


def test_lengths_columns_reward_and_split_are_those_of_model_and_data(tmp_path: Path) -> None:
    place = data(tmp_path / "rows", splits=("train", "test"))
    said, text = drafted(tmp_path, "--model", model(tmp_path / "model", 4096), "--taskset", place)
    assert "fix:" not in said
    assert check_file(tmp_path / "new.yaml").errors == ()
    assert "prompt_key: problem" in text and "response_key: solution" in text
    assert "split: test" in text and "default_workflow_type: math_workflow" in text
    assert "the model has 4096 positions" in said


def test_a_short_model_gets_lengths_that_it_has(tmp_path: Path) -> None:
    options, found = look_into(
        GivenOptions(name="n", model=model(tmp_path / "model", 64), taskset=data(tmp_path / "d"))
    )
    assert options.max_prompt_tokens + options.max_response_tokens <= 64
    assert (options.workflow, options.reward) == ("simple_workflow", "exact_match_reward")
    assert any("instructions of `math_workflow` do not fit" in sentence for sentence in found)


def test_a_reward_that_is_given_stays_also_for_a_short_model(tmp_path: Path) -> None:
    given = GivenOptions(
        name="n",
        model=model(tmp_path / "model", 64),
        taskset=data(tmp_path / "d"),
        reward="mine.own",
    )
    options, _ = look_into(given)
    assert (options.workflow, options.reward) == ("simple_workflow", "mine.own")


def test_few_rows_make_small_steps(tmp_path: Path) -> None:
    given = GivenOptions(name="n", model="a/b", taskset=data(tmp_path / "d", SUMS[:11]))
    assert look_into(given)[0].batch_size == 8


def test_what_is_given_is_kept_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    place = data(tmp_path / "d", [{"a": "x", "b": "y"}])
    given = GivenOptions(
        name="n", model="a/b", taskset=place, prompt_key="a", response_key="b", reward="mine.Own"
    )
    options, _ = look_into(given)
    assert (options.prompt_key, options.response_key, options.reward) == ("a", "b", "mine.Own")
    with pytest.raises(
        UserError, match="none of the usual columns: give --prompt-key, one of a, b"
    ):
        look_into(GivenOptions(name="n", model="a/b", taskset=place))
    with pytest.raises(UserError, match="has no column `c`: give --response-key, one of a, b"):
        look_into(
            GivenOptions(name="n", model="a/b", taskset=place, prompt_key="a", response_key="c")
        )


TURNS = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
OTHER = [TURNS[0], {"role": "assistant", "content": "3"}]
SHAREGPT = [{"from": "human", "value": "1+1="}, {"from": "gpt", "value": "2"}]


@pytest.mark.parametrize(
    ("algorithm", "row", "columns"),
    [
        ("sft", SUMS[1], {"prompt_type": "plaintext", "prompt_key": "problem"}),
        ("sft", {"messages": TURNS}, {"prompt_type": "messages", "messages_key": "messages"}),
        ("sft", {"conversations": SHAREGPT}, {"messages_key": "conversations"}),
        ("cpt", {"text": "once upon a time"}, {"prompt_key": "text"}),
        ("dpo", {"prompt": "1+1=", "chosen": "2", "rejected": "3"}, {"prompt_key": "prompt"}),
        (
            "kto",
            {"prompt": "1+1=", "completion": "2", "label": True},
            {"response_key": "completion", "label_key": "label"},
        ),
        (
            "kto",
            {"prompt": TURNS[:1], "completion": TURNS[1:], "label": 0},
            {"prompt_key": "prompt", "response_key": "completion"},
        ),
        ("simpo", {"chosen": TURNS, "rejected": OTHER}, {"chosen_key": "chosen"}),
    ],
)
def test_an_algorithm_on_data_gets_a_file_that_trains_on_data(
    tmp_path: Path, algorithm: str, row: object, columns: dict[str, str]
) -> None:
    place = data(tmp_path / "rows", [row] * 40)
    words = ("--model", model(tmp_path / "model", 512), "--taskset", place)
    said, text = drafted(tmp_path, *words, "--algorithm", algorithm)
    assert "fix:" not in said and "the first 40 rows have at most" in said
    assert check_file(tmp_path / "new.yaml").errors == ()
    assert "mode: train" in text and "max_model_len: 512" in text
    for key, column in columns.items():
        assert f"{key}: {column}" in text
    with pytest.raises(UserError, match="leave --reward out, or give another --algorithm"):
        drafted(tmp_path / "rows", *words, "--algorithm", algorithm, "--reward", "mine.Own")


def test_columns_that_nothing_reads_are_named(tmp_path: Path) -> None:
    row = {"instruction": "Translate.", "input": "chat", "output": "cat", "note": ""}
    words = ("--model", "a/b", "--taskset", data(tmp_path / "rows", [row] * 40))
    for algorithm in ("sft", "grpo"):
        said, _ = drafted(tmp_path / algorithm, *words, "--algorithm", algorithm)
        assert "`prompt_key: instruction`, `response_key: output`; not read: `input`\n" in said


def test_data_that_is_not_here_gets_the_usual_columns(tmp_path: Path) -> None:
    words = ("--model", "a/b", "--taskset", "hub/rows")
    _, text = drafted(tmp_path, *words, "--algorithm", "sft")
    assert "messages_key: messages" in text
    _, text = drafted(tmp_path / "new.d", *words, "--algorithm", "dpo", "--prompt-key", "q")
    assert "prompt_key: q" in text and "rejected_key: rejected" in text


@pytest.mark.parametrize(
    ("truths", "workflow", "reward"),
    [
        (["72", "-3.5", "1,000"], "math_workflow", None),
        (["\\frac{1}{2}", "$x^2$"], "math_workflow", None),
        (["so 2 #### 2", "#### 5"], "simple_workflow", "gsm8k_reward"),
        (["thus \\boxed{2}"], "simple_workflow", "math_boxed_reward"),
        (["Paris", "the Nile"], "simple_workflow", "exact_match_reward"),
        ([{"target": 24, "numbers": [1, 2]}], "simple_workflow", "countdown_reward"),
    ],
)
def test_the_reward_fits_the_answers(
    truths: list[JsonValue], workflow: str, reward: str | None
) -> None:
    fits = fitting_reward([{"answer": truth} for truth in truths], "answer")
    assert (fits.workflow, fits.reward) == (workflow, reward)


def test_rows_of_verl_are_scored_as_verl_does_and_long_answers_are_said() -> None:
    rows: list[dict[str, JsonValue]] = [{"data_source": "openai/gsm8k", "answer": "72"}]
    assert fitting_reward(rows, "answer").reward == "gsm8k_reward"
    essay = fitting_reward([{"answer": "one two three four five six seven"}], "answer")
    assert "up to 7 words, and no reward here judges such texts" in essay.why


def test_lengths_that_are_guessed_are_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = GivenOptions(
        name="n", model=model(tmp_path / "model", 4096), taskset=data(tmp_path / "d")
    )
    [unread] = [found for found in look_into(given)[1] if found.startswith("prompts of")]
    assert "guessed at 3 characters a token" in unread and "no readable tokenizer.json" in unread
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    [absent] = [found for found in look_into(given)[1] if found.startswith("prompts of")]
    assert absent.endswith("3 characters a token: `trinity setup studio` to have them counted")
    monkeypatch.setattr("trinity.cli.token_lengths.token_counter", lambda _: len)
    monkeypatch.setattr("trinity.cli.config_init.token_counter", lambda _: len)
    [counted] = [found for found in look_into(given)[1] if found.startswith("prompts of")]
    assert "guessed" not in counted, "the control"
