"""`python -m examples.addition.prepare` makes the same files every time, and only when it must."""

import hashlib
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from examples.addition.prepare import prepare

QUESTION = {"role": "user", "content": "12+34="}
ANSWER = {"role": "assistant", "content": "46"}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("addition") / "work"
    prepare(directory, seed=7)
    return directory


@pytest.fixture(scope="module")
def tokenizer(work: Path) -> PreTrainedTokenizerFast:
    loaded: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(work / "model")
    return loaded


def digests(directory: Path) -> dict[str, str]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_the_same_seed_makes_the_same_bytes(work: Path, tmp_path: Path) -> None:
    prepare(tmp_path / "again", seed=7)
    assert digests(tmp_path / "again") == digests(work)


def test_a_second_run_leaves_everything_as_it_is(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    prepare(work, seed=7)
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*")} == before
    assert "prepared already" in capsys.readouterr().out


def test_another_seed_makes_everything_anew(work: Path, tmp_path: Path) -> None:
    prepare(tmp_path / "work", seed=7)
    prepare(tmp_path / "work", seed=8)
    changed = {
        name for name, digest in digests(tmp_path / "work").items() if digest != digests(work)[name]
    }
    assert {"data/sft.jsonl", "data/test.jsonl", "model/model.safetensors"} <= changed


def test_prompt_and_answer_fit_in_thirteen_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = tokenizer.apply_chat_template(
        [QUESTION], add_generation_prompt=True, return_dict=False
    )
    longest = {**ANSWER, "content": "198"}
    whole = tokenizer.apply_chat_template([QUESTION, longest], return_dict=False)
    assert (len(prompt), len(whole)) == (9, 13)


def test_a_conversation_continues_its_prompt_token_for_token_and_ends_with_the_end_token(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    prompt = tokenizer.apply_chat_template(
        [QUESTION], add_generation_prompt=True, return_dict=False
    )
    whole = tokenizer.apply_chat_template([QUESTION, ANSWER], return_dict=False)
    assert whole[: len(prompt)] == prompt
    assert whole[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(whole[len(prompt) :], skip_special_tokens=True) == "46"


def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "What is 12 + 34?\nGr\u00fc\u00dfe, \u4f60\u597d"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_loaded_tokenizer_has_no_token_that_the_model_lacks(
    work: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    config = (work / "model" / "config.json").read_text()
    assert f'"vocab_size": {len(tokenizer)}' in config


def test_a_preparation_that_broke_off_is_made_again(work: Path, tmp_path: Path) -> None:
    prepare(tmp_path / "work", seed=7)
    (tmp_path / "work" / "prepared.json").write_text("")
    (tmp_path / "work" / "data" / "test.jsonl").unlink()
    prepare(tmp_path / "work", seed=7)
    assert digests(tmp_path / "work") == digests(work)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SystemExit, match="holds something else"):
        prepare(tmp_path, seed=7)
    assert (tmp_path / "thesis.txt").exists()
