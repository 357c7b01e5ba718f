"""A file, names in any case and `key=value` become a configuration, or sentences say why not."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from tests.unit.config.builders import GRPO, config, load, stage
from tests.unit.subtests import as_subtests
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.cli.overrides import is_override, parse_overrides
from trinity.config.changes.plans import stage_changes
from trinity.config.check import check_file
from trinity.config.loading.load import load_config, read_config
from trinity.config.loading.yaml import load_yaml
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
CAPITALS = {
    "algorithm_type": "Grpo",
    "sample_strategy": "DEFAULT",
    "advantage_fn": "GRPO",
    "policy_loss_fn": "PPO",
    "kl_penalty_fn": "None",
    "kl_loss_fn": "K2",
    "entropy_loss_fn": "Default",
}


def complaint(directory: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        load(directory, text)
    return str(caught.value).replace(str(directory), "DIR")


def test_what_the_user_wrote_is_kept_and_the_rest_has_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "name: x\nmodel: {model_path: /m}\nbuffer: {batch_size: 7}\n")
    assert (config.name, config.model.model_path, config.buffer.batch_size) == ("x", "/m", 7)
    assert config.buffer.train_batch_size == 0
    assert config.seed == 42


def test_interpolation_reads_environment_and_other_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_TEST_BATCH", "12")
    monkeypatch.delenv("TRINITY_TEST_ABSENT", raising=False)
    config = load(
        tmp_path,
        "name: ${oc.env:TRINITY_TEST_ABSENT,fallback}\n"
        "model: {max_prompt_tokens: 9, max_response_tokens: '${model.max_prompt_tokens}'}\n"
        "buffer: {batch_size: '${oc.env:TRINITY_TEST_BATCH}'}\n",
    )
    assert config.name == "fallback"
    assert config.model.max_response_tokens == 9
    assert config.buffer.batch_size == 12


def test_scientific_notation_is_a_number(tmp_path: Path) -> None:
    config = load(tmp_path, "algorithm: {optimizer: {lr: 5e-4}}")
    assert config.algorithm.optimizer.lr == 5e-4


def test_an_alias_is_a_value_of_its_own(tmp_path: Path) -> None:
    text = "stages: [{stage_name: a, buffer: &b {default_workflow_type: w}}, "
    config = load(tmp_path, text + "{stage_name: b, buffer: {<<: *b, batch_size: 2}}]")
    first, second = (stage.buffer for stage in config.stages)
    assert first.explorer_input == second.explorer_input
    assert first.explorer_input.default_workflow_type == "w"
    assert (first.batch_size, second.batch_size) == (1, 2)


def test_overrides_go_on_top_by_dotted_key(tmp_path: Path) -> None:
    text = "buffer: {total_steps: 100, batch_size: 2}\nstages: [{stage_name: a}, {stage_name: b}]"
    file = tmp_path / "x.yaml"
    file.write_text(text)
    config = load_config(file, {"buffer.total_steps": 3, "stages[1].trainer.total_steps": 4})
    assert (config.buffer.total_steps, config.buffer.batch_size) == (3, 2)
    assert config.stages[1].trainer.total_steps == 4
    assert load_config(file, {"buffer": {"total_steps": 5}}).buffer.batch_size == 2


def test_a_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config = load(tmp_path, "name: x")
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, "name", "y")  # noqa: B010 - mypy refuses the plain form, rightly


def test_an_unknown_key_names_the_nearest_one_and_its_line(tmp_path: Path) -> None:
    assert complaint(tmp_path, "name: x\nbuffer:\n  batchsize: 3\n") == (
        "unknown key `buffer.batchsize` in DIR/x.yaml:3: did you mean `buffer.batch_size`?"
    )


def test_a_key_of_another_section_is_found_there(tmp_path: Path) -> None:
    assert complaint(tmp_path, "buffer: {repeat_times: 3}").endswith(
        "did you mean `algorithm.repeat_times`?"
    )


def test_an_unknown_key_inside_a_stage_and_a_list_is_named_with_its_place(tmp_path: Path) -> None:
    text = "stages:\n- stage_name: a\n  buffer:\n    explorer_input:\n      eval_tasksets:\n"
    assert complaint(tmp_path, text + "      - {pth: x}\n") == (
        "unknown key `stages[0].buffer.explorer_input.eval_tasksets[0].pth` in DIR/x.yaml:6: "
        "did you mean `stages[0].buffer.explorer_input.eval_tasksets[0].path`?"
    )


def test_keys_below_names_of_ones_own_are_known(tmp_path: Path) -> None:
    text = "buffer: {trainer_input: {auxiliary_buffers: {experts: {pth: x}}}}"
    assert complaint(tmp_path, text).endswith(
        "did you mean `buffer.trainer_input.auxiliary_buffers.experts.path`?"
    )


def test_a_key_that_is_called_otherwise_here_is_used(tmp_path: Path) -> None:
    text = "stages: [{stage_name: a, algorithm: {rollout_correction: {bypass_mode: false}}}]"
    assert load(tmp_path, text).stages[0].algorithm.bypass_old_logprobs is False


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("trainer: {trainer_type: tinker}", "trainer.trainer_type: tinker"),
        ("synchronizer: {sync_method: memory}", "synchronizer.sync_method: memory"),
        (
            "stages: [{stage_name: a, trainer: {trainer_type: tinker}}]",
            "stages[0].trainer.trainer_type: tinker",
        ),
    ],
)
def test_what_is_planned_does_not_load(tmp_path: Path, text: str, key: str) -> None:
    said = complaint(tmp_path, text)
    assert said.startswith(f"`{key}` in DIR/x.yaml:1 (")
    assert said.endswith(") does not act yet: remove, or see `trinity config check DIR/x.yaml`")


def test_a_misspelt_key_of_verl_names_the_right_one_before_a_run(tmp_path: Path) -> None:
    text = "trainer: {trainer_config: {actor_rollout_ref: {actor: {grad_clp: 1.0}}}}"
    assert "(did you mean `actor.grad_clip`?) does not act yet" in complaint(tmp_path, text)


def test_what_is_planned_loads_where_it_says_what_happens_anyway(tmp_path: Path) -> None:
    assert load(tmp_path, "trainer: {balance_batch: true, ulysses_sequence_parallel_size: 1}")


@pytest.mark.parametrize("key", ["explorer", "stages", "algorithm.kl_loss_fn_args"])
def test_nothing_under_a_key_is_as_much_as_an_empty_section(tmp_path: Path, key: str) -> None:
    outer, _, inner = key.partition(".")
    assert load(tmp_path, f"name: x\n{outer}:\n  {inner + ':' if inner else ''}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("buffer:\n  batch_size: -1", "`buffer.batch_size` in DIR/x.yaml:2 must be greater than 0"),
        (
            "buffer:\n  total_steps: yes",
            "`buffer.total_steps` in DIR/x.yaml:2 must be a valid integer",
        ),
        ("buffer: {batch_size: many}", "must be a valid integer, not 'many'"),
        ("name: 2024", "`name` in DIR/x.yaml:1 must be a text"),
        ("name: ../x", "`name` in DIR/x.yaml:1 must be letters, digits"),
        ("explorer: 3", "`explorer` in DIR/x.yaml:1 must be a section of keys"),
        ("stages: [{mode: both}]", "`stages[0].stage_name` is missing"),
        (
            "monitor: {monitor_type: x}",
            "must be 'tensorboard', 'wandb', 'mlflow' or 'none', not 'x'",
        ),
    ],
)
def test_a_wrong_value_is_named_with_key_and_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaint(tmp_path, text)


def test_a_name_that_trinity_rft_takes_becomes_the_name_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("project: my project\nname: read_bs*n (2)\ngroup: ok\n")
    reading = read_config(tmp_path / "x.yaml")
    assert [str(notice) for notice in reading.notices] == [
        "`project` is used as `my-project`",
        "`name` is used as `read_bs-n-2`",
    ]


def test_several_mistakes_come_one_a_line(tmp_path: Path) -> None:
    said = complaint(tmp_path, "nmae: x\nbuffer: {batch_size: 0}\nmode: all\n")
    assert len(said.splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "is not valid YAML"),
        ("name: x\nname: y", "is not valid YAML"),
        ("- 1\n- 2", "is a list"),
        ("just words", "is one value"),
        ("1: 2", "unknown key `1`"),
        ("name: ${oc.env:TRINITY_TEST_ABSENT}", "`name` in DIR/x.yaml:1: "),
        ("name: ${nothing.here}", "`name` in DIR/x.yaml:1: "),
        ("name: ${broken", "`name` in DIR/x.yaml:1: "),
        ("name: ???", "`name` in DIR/x.yaml:1: "),
        ("explorer: &a {env_vars: *a}", "an alias leads back to what it stands in"),
        ("? [a]\n: 1", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration_gets_a_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    answer = complaint(tmp_path, text)
    assert said in answer
    assert len(answer.splitlines()) == 1


@as_subtests(
    ("first", "second"),
    [
        ("yes", "on"),
        ("off", "false"),
        ("1", "1.0"),
        ("0x1", "true"),
        ("0", "no"),
        ("null", "~"),
        ("1e3", "1000"),
        ("010", "8"),
        (".nan", ".nan"),
        ("a", "'a'"),
        ("<<: {x: 1}\n  1", "true"),
    ],
)
def test_keys_that_yaml_takes_for_one_are_refused_with_both_lines(first: str, second: str) -> None:
    text = f"m:\n  {first}: a\n  other: b\n  {second}: c\n"
    line = 2 + first.count("\n")
    with pytest.raises(yaml.YAMLError, match=rf"(?s)line {line}\b.*line {line + 2}\b"):
        load_yaml(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [("yes", "'yes'"), ("1", "'1'"), ("1", "2"), ("a", "A"), ("<<: {a: 1}\n  b", "a")],
)
def test_keys_that_differ_to_yaml_stay(first: str, second: str) -> None:
    assert len(load_yaml(f"m:\n  {first}: a\n  {second}: c\n")["m"]) >= 2


def test_a_map_that_is_merged_before_it_is_read_has_its_keys_once() -> None:
    text = "b: &b {x: 2}\nouter:\n  a: &a\n    <<: *b\n    x: 1\nc:\n  <<: *a\n  y: 3\n"
    value = load_yaml(text)
    assert value["outer"] == {"a": {"x": 1}}
    assert value["c"] == {"x": 1, "y": 3}


def test_a_key_that_is_a_list_is_no_yaml_here() -> None:
    with pytest.raises(yaml.YAMLError, match="unhashable key"):
        load_yaml("!!seq a: 1\n")


@pytest.mark.parametrize("value", ["!!int abc", "!!int ''", "!!bool abc", "!!timestamp abc"])
def test_a_value_that_is_not_of_its_tag_is_no_yaml(value: str) -> None:
    with pytest.raises(yaml.YAMLError, match="leave the tag out"):
        load_yaml(f"a: {value}\n")


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the configuration .*none.yaml: No such file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "DIR/x.yaml is empty: write `key: value` lines"),
        (
            "name: a\nname: b\n",
            "DIR/x.yaml:2 is not valid YAML: the key `name` is given twice, first in line 1: "
            "keep one of them",
        ),
        (
            "name: a\nexplorer:\n  env_vars:\n    1: a\n    b: c\n    true: d\n",
            "DIR/x.yaml:6 is not valid YAML: the keys `1` (line 4) and `true` are the same to "
            "YAML: put them in quotes, or keep one of them",
        ),
        (
            "name: ${oc.env:TRINITY_NOT_SET}\n",
            "`name` in DIR/x.yaml:1: the environment variable "
            "TRINITY_NOT_SET is not set: set it, or write a default as in "
            "${oc.env:TRINITY_NOT_SET,value}",
        ),
        ("stages: {}\n", "`stages` in DIR/x.yaml:1 must be a list, not {}"),
    ],
)
def test_a_file_that_makes_no_configuration_gets_a_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    assert complaint(tmp_path, text) == said


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_example_loads_and_plans(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    plan = plan_experiment(load_config(file))
    assert plan.stages
    assert ExperimentPlan.model_validate_json(plan.model_dump_json()) == plan


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
