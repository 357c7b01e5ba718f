"""`key=value` on the command line goes over what the file says, and mistakes say so."""

from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from trinity.cli.overrides import is_override, parse_overrides
from trinity.config.check import check_file
from trinity.config.loading.load import load_config
from trinity.errors import UserError


@as_subtests(
    ("argument", "value"),
    [
        ("a.b=1", 1),
        ("a.b=1e-5", 1e-5),
        ("a.b=true", True),
        ("a.b=", None),
        ("a.b=text with spaces", "text with spaces"),
        ("a.b=[1, x]", [1, "x"]),
        ("a.b={c: 2}", {"c": 2}),
        ("a.b=x=y", "x=y"),
        ("a.b='1'", "1"),
    ],
)
def test_values_are_read_as_yaml(argument: str, value: object) -> None:
    assert parse_overrides([argument]) == {"a.b": value}


@pytest.mark.parametrize("argument", ["a.b", "=1", " =1", "a=[1", "a={b"])
def test_what_sets_nothing_gets_a_sentence(argument: str) -> None:
    with pytest.raises(UserError, match=r"sets no key|is not valid YAML"):
        parse_overrides([argument])


def test_they_reach_into_sections_and_stages(tmp_path: Path) -> None:
    arguments = ("algorithm.optimizer.lr=1e-5", "stages[1].trainer.total_steps=4", "mode=TRAIN")
    config = load_config(
        _file(tmp_path, "name: x\nstages: [{stage_name: a}, {stage_name: b}]\n"),
        parse_overrides(arguments),
    )
    assert config.algorithm.optimizer.lr == 1e-5
    assert config.stages[1].trainer.total_steps == 4
    assert config.mode == "train"


def test_they_may_use_other_keys_and_older_names(tmp_path: Path) -> None:
    file = _file(tmp_path, "model: {max_prompt_tokens: 7}\n")
    given = parse_overrides(
        ["model.max_response_tokens=${model.max_prompt_tokens}", "trainer.actor_grad_clip=3"]
    )
    config = load_config(file, given)
    assert config.model.max_response_tokens == 7
    assert config.trainer.grad_clip == 3


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            "trainer.grad_clp=3",
            "unknown key `trainer.grad_clp` on the command line: did you mean `trainer.grad_clip`?",
        ),
        (
            "trainer.grad_clip=-1",
            "`trainer.grad_clip` on the command line must be greater than 0, not -1",
        ),
        ("name.x=3", "the command line"),
        ("stages[7].mode=both", "the command line"),
        (
            "stage_name=b",
            "reach stages[0], which sets its own: write stages[0].stage_name",
        ),
        ("a..b=1", "`a..b=1` sets no key: write it as "),
        ("[=1", "`[=1` sets no key: write it as "),
    ],
)
def test_mistakes_are_on_the_command_line(tmp_path: Path, argument: str, said: str) -> None:
    file = _file(tmp_path, "name: x\nstages: [{stage_name: a}]\n")
    with pytest.raises(UserError) as caught:
        load_config(file, parse_overrides([argument]))
    assert said in str(caught.value)


def test_a_plans_mistake_is_on_the_command_line_too(tmp_path: Path) -> None:
    file = _file(tmp_path, "model: {model_path: /m, max_model_len: 24}\n")
    report = check_file(file, parse_overrides(["algorithm.advantage_fn=nothing"]))
    assert "the command line: stage `main`: `algorithm.advantage_fn: nothing`" in report.errors[0]


def test_files_are_told_from_overrides() -> None:
    assert is_override("a.b=1")
    assert not is_override("a.yaml")
    assert not is_override("runs/lr=3/x.yaml")


def _file(directory: Path, text: str) -> Path:
    file = directory / "x.yaml"
    file.write_text(text)
    return file
