"""What is shown is what runs, with the origin of every value and without secrets."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from omegaconf import OmegaConf

from tests.unit.config.builders import GRPO
from tests.unit.subtests import as_subtests
from trinity.cli.config_commands import show_difference, show_file
from trinity.cli.config_document import render_page
from trinity.config.check import check_file
from trinity.config.docs.catalog import DraftOptions, all_keys, draft_config
from trinity.config.docs.explain import explain_key_lines, find_keys, json_schema
from trinity.config.schema.experiment import deep_merge
from trinity.errors import UserError
from trinity.verl.key_table import verl_names

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
GUIDE = sorted((Path(__file__).parent / "guide").glob("*.yaml"))


def written(file: Path, **changes: object) -> Path:
    file.write_text(yaml.safe_dump(deep_merge(GRPO, changes)))
    return file


def shown(capsys: pytest.CaptureFixture[str], file: Path, *overrides: str) -> str:
    show_file(file, overrides, with_origin=True)
    return capsys.readouterr().out


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_what_is_shown_plans_as_the_file_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, file: Path
) -> None:
    (tmp_path / "shown.yaml").write_text(shown(capsys, file))
    before, after = check_file(file).plan, check_file(tmp_path / "shown.yaml").plan
    assert before
    assert after
    given = [stage.model_dump(exclude={"config"}) for stage in before.stages]
    assert [stage.model_dump(exclude={"config"}) for stage in after.stages] == given


def test_each_value_says_where_it_comes_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = written(tmp_path / "x.yaml")
    text = shown(capsys, file, "trainer.grad_clip=3.0")
    lines = {
        line.split("#")[0].strip(): line.split("#")[1].strip()
        for line in text.splitlines()
        if "#" in line
    }
    assert lines["grad_clip: 3.0"] == "the command line"
    assert lines["train_batch_size: 32"] == "batch_size x repeat_times"
    assert lines["batch_size: 4"].startswith(f"{file}:")
    assert lines["policy_loss_fn: ppo"] == "default of `grpo`"
    assert lines["max_prompt_tokens: 12"] == "what max_model_len leaves"
    assert lines["betas: [0.9, 0.999]"] == "default"


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    secret = "hunter2"
    arguments: object = {
        "api_key": secret,
        "db": f"postgresql://me:{secret}@host/db",
        "deep": [{"PASSWORD": secret}],
        "max_tokens": 3,
    }
    taskset: object = {"explorer_input": {"taskset": {"workflow_args": arguments}}}
    text = shown(capsys, written(tmp_path / "x.yaml", buffer=taskset))
    assert secret not in text
    assert "max_tokens: 3" in text
    other = written(tmp_path / "y.yaml")
    assert show_difference(tmp_path / "x.yaml", other)
    assert secret not in capsys.readouterr().out


def test_a_secret_of_the_wrong_type_is_not_shown_either(tmp_path: Path) -> None:
    model: object = {"base_url": {"password": "hunter2"}}
    report = check_file(written(tmp_path / "x.yaml", model={"tinker": model}))
    assert report.errors
    assert "hunter2" not in "\n".join(report.errors)


def test_a_difference_is_one_of_what_acts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = written(tmp_path / "one.yaml")
    spelt_out = written(tmp_path / "two.yaml", buffer={"train_batch_size": 32})
    assert not show_difference(one, spelt_out)
    other = written(tmp_path / "three.yaml", algorithm={"repeat_times": 4})
    assert show_difference(one, other)
    said = capsys.readouterr().out
    assert "algorithm.repeat_times\n  - 8" in said
    assert "buffer.train_batch_size\n  - 32" in said


def test_a_key_is_explained_by_its_end_and_by_older_names() -> None:
    (key,) = find_keys("optimizer.lr_warmup_steps_ratio")[:1]
    words = dict(explain_key_lines(key, verl_names(key.plain_path)))
    assert words["type"] == "number from 0 on, up to 1"
    assert words["default"] == "0.0"
    assert "`actor_rollout_ref.actor.optim.lr_warmup_steps_ratio`" in words["in verl"]
    (old,) = find_keys("buffer.default_workflow_type")
    assert "buffer.explorer_input.default_workflow_type" in dict(explain_key_lines(old))["renamed"]
    with pytest.raises(UserError, match=r"did you mean `algorithm\.repeat_times`"):
        find_keys("algorithm.repeat_time")


def test_a_key_without_a_default_is_asked_for() -> None:
    (key,) = find_keys("stages.stage_name")
    assert dict(explain_key_lines(key))["default"] == "none: it must be given"


def test_every_key_can_be_explained() -> None:
    for key in all_keys():
        assert list(explain_key_lines(key))


@as_subtests("file", [*EXAMPLES, *GUIDE])
def test_every_file_fits_the_json_schema(file: Path) -> None:
    jsonschema.Draft7Validator(json_schema()).validate(OmegaConf.to_container(OmegaConf.load(file)))


@pytest.mark.parametrize(
    "wrong",
    [{"nmae": "x"}, {"buffer": {"batch_size": "many"}}, {"log": {"level": "loud"}}],
)
def test_mistakes_do_not_fit_the_json_schema(wrong: dict[str, Any]) -> None:
    schema = json.loads(json.dumps(json_schema()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(wrong)


@pytest.mark.parametrize("gpus", [0, 1, 2])
@pytest.mark.parametrize("eval_split", [None, "test"])
def test_a_draft_has_no_mistake_and_a_meaning_behind_each_key(
    tmp_path: Path, eval_split: str | None, gpus: int
) -> None:
    file = tmp_path / "x.yaml"
    text = draft_config(
        DraftOptions(name="x", model="/model", taskset="/data", eval_split=eval_split, gpus=gpus)
    )
    file.write_text(text)
    report = check_file(file)
    assert (report.errors, report.notices, report.advice) == ((), (), ())
    keys = [line for line in text.splitlines() if ": " in line and not line.startswith("#")]
    assert all("  # " in line for line in keys)


def test_the_page_is_what_the_sections_say() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert render_page(page) == page
