"""All mistakes of a file are said at once, and what is planned keeps nobody from planning."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.subtests import as_subtests
from trinity.cli.main import make_app
from trinity.config.check import check_file
from trinity.config.loading.verl_keys import PREFIX, RENAMED_KEYS
from trinity.verl.key_table import find_row, verl_names
from trinity.verl.row import KeyConversion

GUIDE = Path(__file__).parent / "guide"
MISTAKEN = """\
model: {max_prompt_tokens: 3}
algorithm: {algorithm_type: rloo, advantage_fn: nope, policy_loss_fn: nada}
buffer:
  explorer_input:
    tasksets:
      - name: a
      - name: b
    eval_tasksets:
      - storage_type: sql
  trainer_input:
    auxiliary_buffers: {x: {}}
stages:
  - stage_name: one
  - stage_name: two
    mode: train
    algorithm: {algorithm_type: sftt}
"""


def test_no_mistake_hides_another(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(MISTAKEN)
    said = [line.removeprefix(f"{file}:") for line in check_file(file).errors]
    assert [(line.partition(":")[0], line.split("`")[1], line.split("`")[3]) for line in said] == [
        ("2", "one", "algorithm.advantage_fn: nope"),
        ("2", "one", "algorithm.policy_loss_fn: nada"),
        ("1", "one", "model.max_model_len"),
        ("1", "one", "model.model_path"),
        ("6", "one", "buffer.explorer_input.tasksets[0].path"),
        ("7", "one", "buffer.explorer_input.tasksets[1].path"),
        ("9", "one", "buffer.explorer_input.eval_tasksets[0].path"),
        ("11", "one", "buffer.trainer_input.auxiliary_buffers.x.path"),
        ("16", "two", "algorithm.algorithm_type: sftt"),
        ("1", "two", "model.max_model_len"),
        ("1", "two", "model.model_path"),
        ("10", "two", "buffer.trainer_input.experience_buffer.path"),
        ("11", "two", "buffer.trainer_input.auxiliary_buffers.x.path"),
    ]


OF_EVERY_KIND = """\
model: {model_path: /m, max_prompt_tokens: 3}
algorithm: {algorithm_type: grpo, repeat_times: two}
buffer:
  batch_size: 4
  explorer_input:
    tasksets:
      - {name: a, path: /a.jsonl, default_workflow_type: simpel_workflow}
      - {name: a, path: /b.jsonl, default_reward_fn_type: no_reward}
      - {name: c, storage_type: sql}
    eval_tasksets:
      - name: d
        path: /d.jsonl
        default_workflow_type: maths_workflow
explorer:
  rollout_model: {enable_auto_tool_choice: true}
monitor: {monitor_type: mlflow, monitor_args: {url: here}}
synchronizer: {sync_intervall: 2}
"""


@pytest.mark.parametrize("command", ["check", "run"])
def test_errors_of_every_kind_are_told_with_their_lines(command: str, tmp_path: Path) -> None:
    """A length, a type, a key, a name twice, parts that do not exist, keys that miss others."""
    file = tmp_path / "x.yaml"
    file.write_text(OF_EVERY_KIND)
    words = ["config", "check", str(file)] if command == "check" else ["run", "-c", str(file)]
    done = CliRunner().invoke(make_app(words[:2]), words)
    said = done.output if command == "check" else str(done.exception)
    for name, line in WRONG.items():
        place = re.compile(rf"{re.escape(str(file))}:{line}\b")
        assert any(name in told and place.search(told) for told in said.splitlines()), (name, said)


OF_LISTS = """\
model: {model_path: /m, max_model_len: 24}
cluster: {gpu_per_node: 2}
stages:
  - stage_name: one
    buffer:
      explorer_input:
        taskset: {name: a, path: /a.jsonl, data_selector: {feature_keys: [x]}}
        eval_tasksets:
          - {name: b, storage_type: queue, data_selector: {kwargs: {m: 1}}}
          - {name: b, path: /b.jsonl}
          - {name: c, path: /c.jsonl}
          - {name: c, path: /d.jsonl}
    data_processor:
      task_pipeline:
        operators: [{name: no_such}, {name: nor_this}]
      experience_pipeline:
        operators: [{name: not_there}, {name: neither}]
  - stage_name: one
    cluster: {gpu_per_node: 1}
"""


def test_no_entry_of_a_list_hides_the_next(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(OF_LISTS)
    said = "\n".join(check_file(file).errors)
    for text in (
        f"{file}:18: two of `stages` are called `one`",
        "`cluster` is not that of stage",
        "taskset.data_selector.feature_keys` means nothing to sequential",
        "eval_tasksets[0].storage_type`: an evaluation takes the same tasks",
        "eval_tasksets[0].data_selector.kwargs` means nothing",
        "called `b`",
        "called `c`",
        "task_pipeline.operators[0].name: no_such`",
        "task_pipeline.operators[1].name: nor_this`",
        "experience_pipeline.operators[0].name: not_there`",
        "experience_pipeline.operators[1].name: neither`",
    ):
        assert text in said, (text, said)
    assert len(said.splitlines()) == len(set(said.splitlines()))


WRONG = {
    "max_model_len": 1,
    "repeat_times": 2,
    "simpel_workflow": 7,
    "no_reward": 8,
    "called `a`": 5,
    "tasksets[2].path": 9,
    "maths_workflow": 13,
    "tool_call_parser": 15,
    "monitor_args.url": 16,
    "sync_intervall": 17,
}
"""What is wrong with the file, with its line."""


@as_subtests("command", ["plan", "show"])
@as_subtests("file", sorted(GUIDE.glob("*.yaml")))
def test_what_is_planned_is_named_and_the_rest_told(command: str, file: Path) -> None:
    words = ["config", command, str(file)]
    done = CliRunner().invoke(make_app(words[:2]), words)
    assert done.exception is None
    planned = [one for one in check_file(file).notices if one.status.name == "PLANNED"]
    assert done.output.count("without what is planned: ") == len(planned)
    assert "stage 1: " in done.output or "model_path: " in done.output


BEGINS = "trainer.resume_mode"
"""In a file it is a key of its own; `from-verl` writes the switch that says the same."""


@as_subtests("key", [key for key in RENAMED_KEYS if key != BEGINS])
def test_verls_names_have_one_source(key: str) -> None:
    """What is passed to verl's trainer in a file lands where `from-verl` would write it."""
    row = find_row(key) or find_row(f"{PREFIX}.{key}")
    assert row
    if row.conversion in (KeyConversion.MOVED, KeyConversion.COMBINED):
        assert RENAMED_KEYS[key].to[1:] in row.ours.split(", ")
        assert row.verl in verl_names(RENAMED_KEYS[key].to[1:])
    else:
        assert row.conversion is KeyConversion.PASSED


def test_every_variable_that_is_not_set_is_told_beside_the_other_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "model: {model_path: '${oc.env:NO_MODEL}'}\n"
        "checkpoint_root_dir: ${oc.env:NO_ROOT}/x\n"
        "trainer: {grad_clp: 1}\n"
    )
    mistakes = check_file(file).errors
    assert [name in one for one, name in zip(mistakes, ("NO_MODEL", "NO_ROOT"), strict=False)] == [
        True,
        True,
    ]
    assert any("did you mean `trainer.grad_clip`" in one for one in mistakes)
    assert not any("`model.model_path` is missing" in one for one in mistakes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: ???", "`name` in DIR:1: `???` stands for a value that is still to be given"),
        ("name: ${nam}", "there is no key `nam` to take the value from: name one from the top"),
        ("name: '${oc.env:'", "what follows `${` is neither a key nor a variable: write ${model"),
        ("name: a/b", "must be letters, digits, `.`, `_` and `-`, a letter or digit first, not"),
        ("stages: [{stage_name: a.b}]", "must be letters, digits, `_`, `-`, not 'a.b'"),
        ("synchronizer: {group_name: '/'}", "must be 1 to 64 letters, digits, `.`, `_` and `-`"),
        (
            "algorithm: {kl_loss_fn_args: {1: 2}}",
            "the key `1` of `algorithm.kl_loss_fn_args` in DIR:1",
        ),
        ("algorithm: {kl_loss_fn_args: {on: 2}}", "is not text: put it in quotes"),
        ("name: null", "must be a text (numbers in quotes), not null"),
        ("continue_from_checkpoint: ~s", "must be true or false, not '~s'"),
        ("continue_from_checkpoint: []", "must be true or false, not []"),
    ],
)
def test_a_mistake_is_told_in_words_that_can_be_acted_on(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    assert says.replace("DIR", str(file)) in check_file(file).errors[0]
