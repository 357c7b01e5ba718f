"""Keys that do not act as they are written are spoken of, one by one."""

from pathlib import Path

import pytest

from tests.unit.config.builders import load
from tests.unit.subtests import as_subtests
from trinity.config.check import check_file
from trinity.config.docs.catalog import ConfigKey, all_keys
from trinity.config.loading.keys import parse_key, put
from trinity.config.loading.load import ParsedConfig, read_config
from trinity.config.loading.yaml import yaml_text
from trinity.config.schema.base import mark_of
from trinity.errors import UserError

SINGLE = [key for key in all_keys() if "[]" not in key.path and "<name>" not in key.path]
MARKED = [
    key
    for key in SINGLE
    if key.field and (mark := mark_of(key.field)) is not None and mark.reason == key.reason
]


def read(directory: Path, text: str) -> ParsedConfig:
    file = directory / "x.yaml"
    file.write_text(text)
    return read_config(file)


def with_value(key: ConfigKey, value: object) -> str:
    tree: dict[str, object] = {}
    put(tree, parse_key(key.path), value)
    return yaml_text(tree)


@as_subtests("key", MARKED)
def test_a_key_that_does_not_act_is_silent_where_it_says_what_happens_anyway(
    tmp_path: Path, key: ConfigKey
) -> None:
    default = key.default.model_dump() if hasattr(key.default, "model_dump") else key.default
    default = list(default) if isinstance(default, tuple) else default
    reading = read(tmp_path, with_value(key, default))
    assert reading.errors == ()
    assert reading.notices == ()


@as_subtests("key", [k for k in MARKED if "true or false" in k.type])
def test_a_switch_that_does_not_act_is_named_where_it_asks_for_something(
    tmp_path: Path, key: ConfigKey
) -> None:
    reading = read(tmp_path, with_value(key, not key.default))
    assert [(one.status, one.key) for one in reading.notices if one.key == key.path] == [
        (key.status, key.path)
    ]


def test_the_four_fates_as_sentences(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        "explorer:\n  name: mine\nbuffer:\n  default_workflow_type: w\n"
        "monitor: {monitor_type: swanlab}\n"
        "trainer: {save_hf_checkpoint: never}\n",
    )
    assert [(one.status.name, one.line, str(one)) for one in reading.notices] == [
        (
            "NO_EFFECT",
            2,
            "`explorer.name: mine`: explorers come and go, and are told apart by their ids",
        ),
        (
            "RENAMED",
            4,
            "`buffer.default_workflow_type` is used as "
            "`buffer.explorer_input.default_workflow_type`",
        ),
        ("PLANNED", 5, "`monitor.monitor_type: swanlab`: SwanLab"),
        (
            "NO_EFFECT",
            6,
            "`trainer.save_hf_checkpoint: never`: every version of the weights is safetensors in "
            "Hugging Face's layout",
        ),
    ]


def test_the_value_of_an_older_name_is_used(tmp_path: Path) -> None:
    text = "buffer: {default_workflow_type: w}\nalgorithm: {optimizer: {warmup_style: cosine}}\n"
    config = load(tmp_path, text + "explorer: {rollout_model: {top_p: 0.5, top_k: null}}")
    assert config.buffer.explorer_input.default_workflow_type == "w"
    assert config.algorithm.optimizer.lr_scheduler_type == "cosine"
    assert config.model.top_p == 0.5


def test_an_older_name_in_a_stage_stays_in_the_stage(tmp_path: Path) -> None:
    text = "stages: [{stage_name: a, explorer: {rollout_model: {temperature: 0.5}}}]"
    config = load(tmp_path, text)
    assert config.stages[0].model.temperature == 0.5
    assert config.model.temperature == 1.0


def test_two_names_of_one_key_with_two_values_are_a_mistake(tmp_path: Path) -> None:
    text = "trainer:\n  max_token_len_per_gpu: 10\n  ppo_max_token_len_per_gpu: 20\n"
    (said,) = read(tmp_path, text).errors
    place = tmp_path / "x.yaml"
    assert said == (
        f"`trainer.ppo_max_token_len_per_gpu: 20` in {place}:3 is another name of "
        f"`trainer.max_token_len_per_gpu: 10` in {place}:2: remove one"
    )
    assert read(tmp_path, text.replace("20", "10")).errors == ()


def test_values_have_names_in_any_case_and_other_names(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "mode: Both\nsynchronizer: {sync_method: OFFLINE}\nlog: {level: debug}\n"
        "explorer: {rollout_model: {engine_type: vllm_async}}\n"
        "algorithm: {optimizer: {optimizer_type: AdamW}}\n",
    )
    assert (config.mode, config.log.level) == ("both", "DEBUG")
    assert config.synchronizer.sync_method == "checkpoint"
    assert config.explorer.rollout_model.engine_type == "vllm"
    assert config.algorithm.optimizer.optimizer_type == "adam"


def test_verls_keys_are_used_or_named_one_by_one(tmp_path: Path) -> None:
    text = """\
trainer:
  trainer_config:
    actor_rollout_ref:
      actor: {grad_clip: 2.0, ppo_micro_batch_size_per_gpu: 3, shuffle: true, unheard_of: 1}
      model: {override_config: {attention_dropout: 0.1}}
    critic: {optim: {lr: 3.0e-5}, ppo_epochs: 1}
    actor: {ppo_epochs: 2}
    trainer: {default_hdfs_dir: /x}
"""
    reading = read(tmp_path, text)
    assert reading.config
    assert reading.config.trainer.grad_clip == 2.0
    assert reading.config.trainer.critic.optimizer.lr == 3e-5
    assert reading.config.trainer.ppo_epochs == 2
    assert reading.config.trainer.ppo_micro_batch_size_per_gpu == 3
    assert reading.config.trainer.override_config == {"attention_dropout": 0.1}
    told = {(one.status.name, one.key.removeprefix("trainer.")) for one in reading.notices}
    actor = "trainer_config.actor_rollout_ref.actor"
    assert told == {
        ("RENAMED", f"{actor}.grad_clip"),
        ("RENAMED", f"{actor}.ppo_micro_batch_size_per_gpu"),
        ("NO_EFFECT", f"{actor}.shuffle"),
        ("PLANNED", f"{actor}.unheard_of"),
        (
            "RENAMED",
            "trainer_config.actor_rollout_ref.model.override_config.attention_dropout",
        ),
        ("RENAMED", "trainer_config.critic.optim.lr"),
        ("RENAMED", "trainer_config.actor.ppo_epochs"),
        ("PLANNED", "trainer_config.trainer.default_hdfs_dir"),
    }


def test_a_section_of_verls_in_which_nothing_is_written_is_no_key(tmp_path: Path) -> None:
    for written in ("{}", "{actor_rollout_ref: {actor: {}}, critic: {}}"):
        reading = read(tmp_path, f"trainer:\n  trainer_config: {written}\n")
        assert reading.config and reading.notices == (), reading.notices


def test_a_run_refuses_all_that_is_planned_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        judge = "{model_path: x, rope_scaling: {api_key: abc}}"
        load(
            tmp_path,
            f"trainer: {{trainer_type: tinker}}\nexplorer: {{auxiliary_models: [{judge}]}}\n",
        )
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert "`trainer.trainer_type: tinker`" in said
    assert "`explorer.auxiliary_models[0].rope_scaling` in" in said
    assert "do not act yet" in said
    assert "abc" not in said


def test_a_planned_value_hides_no_other_mistake(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("monitor: {monitor_type: swanlab}\nnmae: x\n")
    report = check_file(file)
    assert sum("`nmae`" in error for error in report.errors) == 1
    assert [one.key for one in report.notices] == ["monitor.monitor_type"]
