"""`config explain` names the modes in which a key acts; in the others it changes no plan."""

import pytest

from tests.unit.config.builders import config
from tests.unit.subtests import as_subtests
from trinity.config.docs.catalog import all_keys
from trinity.config.docs.explain import explain_key_lines, find_keys
from trinity.config.key_modes import ALL, MODES, modes_of
from trinity.config.planning import plan_experiment
from trinity.errors import UserError

OTHERS: dict[str, object] = {
    "algorithm.repeat_times": 4,
    "algorithm.optimizer.lr": 0.5,
    "algorithm.kl_loss_fn": "k1",
    "algorithm.policy_loss_fn": "gspo",
    "buffer.batch_size": 3,
    "buffer.train_batch_size": 24,
    "buffer.total_steps": 77,
    "buffer.trainer_input.experience_buffer.max_read_timeout": 60,
    "explorer.auxiliary_models": [{"model_path": "/models/judge"}],
    "explorer.eval_interval": 7,
    "model.critic_model_path": "/models/other",
    "model.temperature": 0.3,
    "synchronizer.sync_offset": 2,
    "trainer.grad_clip": 0.5,
    "trainer.rank_num": 2,
    "trainer.save_interval": 9,
    "trainer.total_steps": 5,
    "data_processor.experience_pipeline.operators": [{"name": "reward_filter"}],
}
"""Another value for keys of each kind."""


def resolved(mode: str, key: str = "", value: object = None) -> object:
    """What a plan derives, without the keys themselves."""
    rows = {"storage_type": "file", "path": "/data/rows.jsonl"} if mode == "train" else {}
    values: dict[str, object] = {
        "mode": mode,
        "model": {"model_path": "/models/tiny", "max_model_len": 24},
        "algorithm": {"algorithm_type": "sft" if mode == "train" else "grpo"},
        "buffer": {
            "batch_size": 12,
            "train_batch_size": 12,
            "total_steps": 10,
            "explorer_input": {
                "default_workflow_type": "simple_workflow",
                "taskset": {"path": "/data/train.jsonl"},
                "eval_tasksets": [{"name": "test", "path": "/data/test.jsonl"}],
            },
            "trainer_input": {"experience_buffer": rows},
        },
    }
    if key:
        _put(values, key.split("."), value)
    try:
        [stage] = plan_experiment(config(values)).stages
    except UserError as error:
        return str(error)
    return stage.model_dump(exclude={"config"})


def _put(values: dict[str, object], path: list[str], value: object) -> None:
    for name in path[:-1]:
        inner = values.setdefault(name, {})
        assert isinstance(inner, dict)
        values = inner
    values[path[-1]] = value


@as_subtests("key", OTHERS)
@as_subtests("mode", ALL)
def test_a_key_that_does_not_act_in_a_mode_changes_no_plan(mode: str, key: str) -> None:
    if mode not in modes_of(key):
        assert differing(resolved(mode), resolved(mode, key, OTHERS[key])) == []


UNREAD = {"algorithm", "train_batch_size", "num_expert_rows", "max_token_len_per_gpu"}
UNREAD |= {"lr_schedule", "critic_lr_schedule", "eval_interval", "critic_model_path"}
UNREAD |= {"trainer_rank_num"}
"""Parts of a plan that are derived in every mode, and that the modes without them never read."""


def differing(before: object, after: object) -> list[str]:
    assert isinstance(before, dict), before
    assert isinstance(after, dict), after
    return [name for name in before if before[name] != after[name] and name not in UNREAD]


@pytest.mark.parametrize(
    ("mode", "key"),
    [
        ("both", "buffer.batch_size"),
        ("both", "buffer.trainer_input.experience_buffer.max_read_timeout"),
        ("train", "trainer.total_steps"),
        ("explore", "buffer.total_steps"),
        ("bench", "explorer.auxiliary_models"),
    ],
)
def test_a_key_that_acts_changes_the_plan(mode: str, key: str) -> None:
    assert mode in modes_of(key)
    assert differing(resolved(mode), resolved(mode, key, OTHERS[key]))


def test_the_table_names_keys_that_exist() -> None:
    paths = {key.plain_path for key in all_keys()}
    assert [path for path in MODES if path and path not in paths] == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("seed", "every mode"),
        ("trainer.save_interval", "both, train"),
        ("explorer.max_timeout", "both, explore, bench"),
        ("explorer.rollout_model.engine_num", "every mode but train"),
        ("explorer.bench_on_latest_checkpoint", "bench"),
    ],
)
def test_a_key_tells_in_which_modes_it_acts(key: str, words: str) -> None:
    [found] = find_keys(key)
    assert dict(explain_key_lines(found))["acts in"] == words


def test_a_key_that_never_acts_says_why_and_names_no_mode() -> None:
    [found] = find_keys("ray_namespace")
    assert "acts in" not in dict(explain_key_lines(found))
