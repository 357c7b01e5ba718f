"""What a file or an override gets wrong is told in words that say what to do, each kind once."""

from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, config, load
from tests.unit.config.test_broken_files import PLAIN
from trinity.cli.config_check import check_on_machine
from trinity.cli.overrides import parse_overrides
from trinity.config.docs.explain import explain_key_lines, find_keys
from trinity.config.loading.load import read_config
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.verl.back import verl_command
from trinity.verl.settings import read_sources

YAML_CASES = {
    "a tab": ("explorer:\n\tmax_timeout: 3\n", "x.yaml:2", "is indented by a tab"),
    "a sign": ("trainer:\n  name: @x\n", "x.yaml:2", "no value begins with `@`: put it in quotes"),
    "an unknown alias": ("name: *runs\n", "x.yaml:1", "`*runs` refers to no `&name` above it"),
    "a pattern of files": ("name: *.jsonl\n", "x.yaml:1", "`*.jsonl` refers to no `&name`"),
    "two documents": ("name: a\n---\nname: b\n", "x.yaml:2", "leave `---` out"),
    "a control character": ("name: 'a\x07'\n", "x.yaml:1", "control character U+0007: remove it"),
    "a colon in a text": ("name: a: b\n", "x.yaml:1", "put a text with `: ` in it in quotes"),
    "a line too far left": ("a:\n   b: 1\n  c: 2\n", "x.yaml:3", "indent the line like its"),
    "an open bracket": ("a: {b: 1\n", "x.yaml:2", "close the bracket"),
    "an open list": ("a: [\n", "x.yaml:2", "close the bracket"),
    "an open quote": ("a: 'b\n", "x.yaml:2", "close the quote"),
    "no colon": ("name = x\nmode: both\n", "x.yaml:2", "write one `key: value` a line"),
    "a template": ("name: {{ x }}\n", "x.yaml:1", "braces or brackets in quotes"),
    "a tag": ("name: !!python/object:os.system x\n", "x.yaml:1", "leave the tag out"),
    "a backslash": ('name: "C:\\data"\n', "x.yaml:1", "for a backslash"),
}


@pytest.mark.parametrize("case", YAML_CASES)
def test_a_text_that_is_not_yaml_gets_its_line_and_what_to_do(case: str, tmp_path: Path) -> None:
    text, place, told = YAML_CASES[case]
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    said = str(caught.value)
    assert place in said
    assert told in said
    assert "\n" not in said


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"name: a\n# caf\xe9\n")
    with pytest.raises(UserError, match=r"x\.yaml:2 is not UTF-8 text: save the file as UTF-8"):
        read_config(file)


def errors_of(text: str, tmp_path: Path, **overrides: object) -> tuple[str, ...]:
    file = tmp_path / "x.yaml"
    file.write_text(PLAIN + text)
    return check_on_machine(file, {key: str(value) for key, value in overrides.items()}).errors


def test_two_values_that_are_taken_from_one_another_are_one_mistake(tmp_path: Path) -> None:
    [said] = errors_of(
        "trainer: {name: '${explorer.name}'}\nexplorer: {name: '${trainer.name}'}\n", tmp_path
    )
    assert "it takes its value from itself" in said


def test_an_unknown_kind_of_value_is_told_with_the_two_that_there_are(tmp_path: Path) -> None:
    [said] = errors_of("name: '${file:x}'\n", tmp_path)
    assert "`${file:` is not known here: write ${model.model_path}" in said


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (
            "explorer: {m\u0430x_timeout: 3}",
            "U+0430 (cyrillic small letter a) stands: did you mean",
        ),
        ("explorer: {max_timeout:\u00a03}", "U+00A0 (no-break space) stands"),
        ("null: 3", "unknown key `null`"),
        (
            "trainer:\n  save_interval:3",
            "must be a section of keys (write a space behind the colon)",
        ),
        ("trainer: {save_interval: 4.5}", "must be a whole number, not 4.5"),
    ],
)
def test_what_the_eye_does_not_see_is_named(key: str, told: str, tmp_path: Path) -> None:
    [said] = errors_of(f"{key}\n", tmp_path)
    assert told in said


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("~nobody-here/runs", "~nobody-here is no user of this machine: write the whole path"),
        ("$HOME/runs", "only a shell fills in $HOME: write ${oc.env:HOME}/runs"),
    ],
)
def test_a_path_that_would_be_taken_word_for_word_is_refused(path: str, told: str) -> None:
    keys = {
        "checkpoint_root_dir": path,
        "model": {"model_path": path},
        "buffer": {
            "trainer_input": {"auxiliary_buffers": {"a": {"storage_type": "file", "path": path}}}
        },
    }
    with pytest.raises(UserError) as caught:
        plan_experiment(config(GRPO, **keys))
    said = [line for line in str(caught.value).splitlines() if told in line]
    assert len(said) == 3, said


def test_a_path_of_the_top_level_is_told_with_its_line(tmp_path: Path) -> None:
    [said] = errors_of("checkpoint_root_dir: s3://bucket/runs\n", tmp_path)
    assert "x.yaml:7: `checkpoint_root_dir: s3://bucket/runs` is an address" in said


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("buffer..batch_size=3", "sets no key"),
        ("buffer.=3", "sets no key"),
        ("stages[-1].mode=train", "sets no key"),
        ("+buffer.batch_size=3", "write it as buffer.batch_size=3"),
        ("++buffer.batch_size=3", "write it as buffer.batch_size=3"),
    ],
)
def test_an_override_with_an_empty_part_or_a_sign_is_refused(word: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        parse_overrides([word])
    assert parse_overrides(["buffer.batch_size=3", "stages[0].a=1", "a.b-c d.e=1"])


@pytest.mark.parametrize(
    "word",
    ["~buffer.batch_size", "buffer.batch_size: 3", "buffer.batch_size:3", "buffer/batch_size=3"],
)
def test_a_word_that_is_meant_for_a_key_is_answered_with_how_a_key_is_set(word: str) -> None:
    with pytest.raises(UserError, match=r"a key is set by `buffer\.batch_size=VALUE`"):
        read_config(Path(word))
    with pytest.raises(UserError) as caught:
        read_config(Path("runs/mine.yaml"))
    assert "a key is set by" not in str(caught.value)


def test_a_number_without_a_list_says_when_a_number_works(tmp_path: Path) -> None:
    key = "buffer.explorer_input.eval_tasksets.0.name"
    [said] = errors_of("", tmp_path, **{key: "x"})
    assert "must be a list (an item is set by its number if the file has the list)" in said


def test_a_key_is_found_in_any_case_and_by_the_words_of_its_meaning() -> None:
    assert find_keys("Algorithm.Optimizer.LR") == find_keys("algorithm.optimizer.lr")
    assert find_keys("BATCH_SIZE") == find_keys("batch_size")
    with pytest.raises(UserError, match=r"did you mean `algorithm\.optimizer\.lr`"):
        find_keys("learning_rate")
    [section] = find_keys("buffer")
    names = dict(explain_key_lines(section))["keys"].split(", ")
    assert {"batch_size", "explorer_input"} <= {*names}


def test_all_mistakes_of_an_operator_are_told_with_their_lines(tmp_path: Path) -> None:
    rule = "{stats_key: q, op_type: ADDD, weight: x}"
    operators = (
        "data_processor:\n  experience_pipeline:\n    operators:\n"
        f"    - {{name: reward_shaping_mapper, args: {{reward_shaping_configs: [{rule}, 3]}}}}\n"
        "    - {name: data_juicer, args: {config_path: /dj.yaml}}\n"
    )
    said = errors_of(operators, tmp_path)
    places = [line.partition(": stage")[0].rpartition(":")[2] for line in said]
    assert places == ["10", "10", "10", "11"], said
    told = [
        "op_type is 'ADDD'",
        "weight is 'x'",
        "configs[1] is 3",
        "`data_processor.experience_pipeline.operators[1].name: data_juicer` needs a server",
    ]
    assert [part for part, line in zip(told, said, strict=True) if part not in line] == []


def test_a_stage_with_a_wrong_name_hides_no_mistake_in_it_or_behind_it(tmp_path: Path) -> None:
    text = (
        "stages:\n- {stage_name: a/b, algorithm: {advantage_fn: grpoo}}\n"
        "- {mode: both, algorithm: {kl_loss_fn: k9}}\n- {stage_name: c, mode: explore, "
        "algorithm: {policy_loss_fn: ppoo}}\n"
    )
    told = "\n".join(errors_of(text, tmp_path))
    assert "`stages[0].stage_name` in" in told
    assert "`stages[1].stage_name` is missing" in told
    assert "x.yaml:8: stage `stage-1`: `algorithm.advantage_fn: grpoo`" in told
    assert "x.yaml:9: stage `stage-2`: `algorithm.kl_loss_fn: k9`" in told
    assert "x.yaml:10: stage `c`: `algorithm.policy_loss_fn: ppoo`" in told


@pytest.mark.parametrize("text", ["a: [\n", "- a\n"])
def test_a_file_to_convert_that_is_no_configuration_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    told = r"x\.yaml(:2 is not valid YAML.*close the bracket| holds no `key: value` lines)"
    with pytest.raises(UserError, match=told):
        verl_command(text, file)
    with pytest.raises(UserError, match=told):
        read_sources([str(file)], {}, None)
