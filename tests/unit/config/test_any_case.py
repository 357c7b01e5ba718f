"""Names of built-in parts may be written in capitals, and the command line is over the file."""

from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, config, load, stage
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.config.changes.plans import stage_changes
from trinity.config.check import check_file
from trinity.config.loading.load import load_config
from trinity.errors import UserError

CAPITALS = {
    "algorithm_type": "Grpo",
    "sample_strategy": "DEFAULT",
    "advantage_fn": "GRPO",
    "policy_loss_fn": "PPO",
    "kl_penalty_fn": "None",
    "kl_loss_fn": "K2",
    "entropy_loss_fn": "Default",
}


def test_a_plan_is_the_same_in_capitals() -> None:
    small = {key: name.lower() for key, name in CAPITALS.items()}
    before, now = (stage(GRPO, algorithm=names) for names in (small, CAPITALS))
    assert before.algorithm == now.algorithm
    assert not stage_changes(before, now, lambda *_: False)


def test_a_name_in_capitals_is_a_users_part_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = ALGORITHM_TYPES.get("rloo")
    monkeypatch.setitem(ALGORITHM_TYPES._sources, "GRPO", mine)
    assert stage(GRPO, algorithm={"algorithm_type": "GRPO"}).algorithm.algorithm_type == "rloo"
    assert stage(GRPO, algorithm={"algorithm_type": "Grpo"}).algorithm.algorithm_type == "grpo"


def test_a_misspelt_name_is_refused_in_any_case() -> None:
    with pytest.raises(UserError, match="did you mean `grpo`"):
        stage(GRPO, algorithm={"algorithm_type": "grop"})
    with pytest.raises(UserError, match=r"`algorithm\.policy_loss_fn: PPPO` is not supported"):
        stage(GRPO, algorithm={"policy_loss_fn": "PPPO"})


OLD, NEW = "buffer.default_workflow_type", "buffer.explorer_input.default_workflow_type"


@pytest.mark.parametrize(("in_file", "typed"), [(OLD, NEW), (NEW, OLD), (NEW, NEW), (OLD, OLD)])
def test_an_override_is_over_the_file_under_any_name(
    tmp_path: Path, in_file: str, typed: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(nested_text(in_file, "simple_workflow"))
    read = load_config(file, {typed: "math_workflow"})
    assert read.buffer.explorer_input.default_workflow_type == "math_workflow"


def test_two_names_of_a_key_in_one_place_are_still_refused(tmp_path: Path) -> None:
    text = "buffer:\n  default_workflow_type: a\n  explorer_input: {default_workflow_type: b}\n"
    with pytest.raises(UserError, match="is another name of"):
        load(tmp_path, text)
    file = tmp_path / "none.yaml"
    file.write_text("name: x\n")
    with pytest.raises(UserError, match="is another name of"):
        load_config(file, {OLD: "a", NEW: "b"})


def nested_text(key: str, value: str) -> str:
    *above, last = key.split(".")
    lines = [f"{'  ' * depth}{name}:" for depth, name in enumerate(above)]
    return "\n".join([*lines, f"{'  ' * len(above)}{last}: {value}"]) + "\n"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"stages[0].mode": "train"}, "there is no such list, or it is shorter"),
        ({"buffer.batch_size.x": 1}, "there is no section at `batch_size`"),
    ],
)
def test_an_override_that_leads_nowhere_says_why(
    tmp_path: Path, overrides: dict[str, object], says: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("name: x\nbuffer: {batch_size: 4}\n")
    report = check_file(file, overrides)  # type: ignore[arg-type]
    assert says in report.errors[0]


def test_a_key_in_the_place_of_a_file_is_told_how_to_set_it() -> None:
    assert "by `buffer.batch_size=VALUE`" in check_file(Path("buffer.batch_size")).errors[0]
    assert "VALUE" not in check_file(Path("no_such.yaml")).errors[0]


def test_a_missing_item_has_the_line_of_its_list(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("name: x\nalgorithm:\n  optimizer:\n    betas: [0.9]\n")
    [said] = [line for line in check_file(file).errors if "betas" in line]
    assert f"in {file}:4" in said


def test_a_bench_without_tasks_is_said(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("mode: bench\nmodel: {model_path: /m, max_model_len: 24}\n")
    assert any("`mode: bench` evaluates on" in said for said in check_file(file).advice)
    assert config(GRPO).mode == "both"
