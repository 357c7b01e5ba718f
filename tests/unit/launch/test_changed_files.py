"""A table of changed files: what becomes of the run that goes on with each of them."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, IMITATION, REINFORCEMENT, SFT, config, write_rows
from tests.unit.subtests import as_subtests
from trinity.config.changes.plans import ChangedRun, compare_plans
from trinity.config.changes.rules import RULES, ChangeKind, plain_key, rule_of
from trinity.config.docs.catalog import all_keys
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.base import KeyStatus
from trinity.config.schema.experiment import deep_merge
from trinity.errors import UserError
from trinity.run.launch.resume import changed_run, check_resumable, store_plan

FREE, EXPERIMENT, IMPOSSIBLE = ChangeKind
ENGINE = "explorer.rollout_model"
TASKSET = "buffer.explorer_input.taskset"
OPTIMIZER = "algorithm.optimizer"
JUDGES = [{"model_path": "/models/judge", "max_model_len": 64}]
HELD_OUT = {"name": "held_out", "path": "/data/test.jsonl"}

CASES: tuple[tuple[str, object, ChangeKind], ...] = (
    ("trainer.save_interval", 7, FREE),
    ("trainer.max_checkpoints_to_keep", 3, FREE),
    ("buffer.keep_steps", 5, FREE),
    ("log.level", "DEBUG", FREE),
    ("monitor.monitor_type", "none", FREE),
    (f"{ENGINE}.gpu_memory_utilization", 0.5, FREE),
    (f"{ENGINE}.extra_engine_args.max_num_seqs", 8, FREE),
    (f"{ENGINE}.enforce_eager", True, FREE),
    (f"{ENGINE}.enable_prefix_caching", False, FREE),
    (f"{ENGINE}.tensor_parallel_size", 2, FREE),
    (f"{ENGINE}.engine_num", 2, FREE),
    (f"{ENGINE}.base_port", 8123, FREE),
    ("trainer.max_token_len_per_gpu", 64, FREE),
    ("trainer.enable_gradient_checkpointing", True, FREE),
    ("trainer.param_offload", True, FREE),
    ("trainer.optimizer_offload", True, FREE),
    ("trainer.offload_policy", True, FREE),
    ("trainer.use_remove_padding", False, FREE),
    ("explorer.eval_interval", 3, FREE),
    ("explorer.eval_on_startup", False, FREE),
    ("buffer.explorer_input.eval_tasksets", [HELD_OUT], FREE),
    ("explorer.max_timeout", 60.0, FREE),
    ("explorer.max_retry_times", 5, FREE),
    ("explorer.runner_per_model", 2, FREE),
    ("synchronizer.sync_method", "nccl", FREE),
    ("synchronizer.sync_timeout", 60.0, FREE),
    ("buffer.total_steps", 20, FREE),
    ("buffer.total_steps", 5, FREE),
    ("trainer.total_steps", 6, FREE),
    (f"{OPTIMIZER}.lr", 0.5, EXPERIMENT),
    (f"{OPTIMIZER}.betas", [0.9, 0.95], EXPERIMENT),
    (f"{OPTIMIZER}.weight_decay", 0.1, EXPERIMENT),
    (f"{OPTIMIZER}.lr_scheduler_type", "cosine", EXPERIMENT),
    (f"{OPTIMIZER}.lr_warmup_steps", 3, EXPERIMENT),
    ("trainer.grad_clip", 0.5, EXPERIMENT),
    ("trainer.ppo_epochs", 2, EXPERIMENT),
    ("trainer.dtype", "float32", EXPERIMENT),
    ("algorithm.policy_loss_fn", "gspo", EXPERIMENT),
    ("algorithm.policy_loss_fn_args.clip_range", 0.1, EXPERIMENT),
    ("algorithm.kl_loss_fn", "k3", EXPERIMENT),
    ("algorithm.entropy_loss_fn_args.entropy_coef", 0.1, EXPERIMENT),
    ("algorithm.loss_agg_mode", "seq-mean-token-sum", EXPERIMENT),
    ("model.max_response_tokens", 4, EXPERIMENT),
    ("model.temperature", 0.7, EXPERIMENT),
    (f"{TASKSET}.rollout_args.temperature", 0.7, EXPERIMENT),
    (f"{TASKSET}.workflow_args.turns", 3, EXPERIMENT),
    (f"{TASKSET}.data_selector.selector_type", "shuffle", EXPERIMENT),
    (TASKSET, {"name": "harder", "path": "/data/harder.jsonl"}, EXPERIMENT),
    (f"{ENGINE}.dtype", "float32", EXPERIMENT),
    ("explorer.env_vars.DEPTH", "3", EXPERIMENT),
    ("explorer.auxiliary_models", JUDGES, EXPERIMENT),
    ("seed", 1, EXPERIMENT),
    ("buffer.batch_size", 8, IMPOSSIBLE),
    ("buffer.train_batch_size", 16, IMPOSSIBLE),
    ("algorithm.repeat_times", 4, IMPOSSIBLE),
    ("synchronizer.sync_interval", 2, IMPOSSIBLE),
    ("synchronizer.sync_offset", 1, IMPOSSIBLE),
    ("synchronizer.sync_style", "trainer_driven", IMPOSSIBLE),
    ("explorer.over_rollout.ratio", 0.5, IMPOSSIBLE),
    (f"{OPTIMIZER}.optimizer_type", "sgd", IMPOSSIBLE),
    ("trainer.rank_num", 2, FREE),
    ("trainer.fsdp_size", 1, FREE),
    ("trainer.override_config.num_hidden_layers", 1, IMPOSSIBLE),
    ("model.model_path", "/models/other", IMPOSSIBLE),
    ("model.lora_configs", [{"lora_rank": 8}], IMPOSSIBLE),
    ("model.custom_chat_template", "{{ 1 }}", IMPOSSIBLE),
    ("algorithm.algorithm_type", "ppo", IMPOSSIBLE),
    ("mode", "explore", IMPOSSIBLE),
    (f"{TASKSET}.path", "/data/other.jsonl", IMPOSSIBLE),
    ("tenant", "other", IMPOSSIBLE),
    ("cluster.gpu_per_node", 2, FREE),
    ("buffer.trainer_input.experience_buffer.max_read_timeout", 60, FREE),
    (f"{ENGINE}.extra_engine_args.max_num_batched_tokens", 4096, FREE),
    (f"{ENGINE}.extra_engine_args.quantization", "fp8", EXPERIMENT),
    (f"{ENGINE}.extra_engine_args.logprobs_mode", "raw_logprobs", EXPERIMENT),
    (f"{ENGINE}.extra_engine_args.kv_cache_dtype", "fp8", EXPERIMENT),
    (f"{ENGINE}.extra_engine_args.of_a_later_release", 1, EXPERIMENT),
    (f"{ENGINE}.extra_engine_args.seed", 3, EXPERIMENT),
    (f"{ENGINE}.enable_history", True, EXPERIMENT),
    ("model.top_p", 0.9, EXPERIMENT),
    ("model.top_k", 5, EXPERIMENT),
    ("model.repetition_penalty", 1.1, EXPERIMENT),
    ("model.max_prompt_tokens", 10, EXPERIMENT),
    ("model.max_model_len", 32, EXPERIMENT),
    ("model.rope_scaling", {"rope_type": "yarn", "factor": 2.0}, IMPOSSIBLE),
    ("trainer.entropy_checkpointing", True, FREE),
    ("trainer.entropy_from_logits_with_chunking", True, FREE),
    ("trainer.use_dynamic_bsz", False, FREE),
    ("trainer.ppo_micro_batch_size_per_gpu", 2, FREE),
    ("cluster.node_num", 2, FREE),
    ("log.group_by_node", True, FREE),
    ("monitor.monitor_args.base_url", "http://monitor", FREE),
    ("algorithm.advantage_fn_args.epsilon", 1e-3, EXPERIMENT),
    ("algorithm.sample_strategy", "staleness_control", EXPERIMENT),
    ("data_processor.experience_pipeline.operators", [{"name": "reward_filter"}], EXPERIMENT),
    ("buffer.explorer_input.default_workflow_type", "math_workflow", EXPERIMENT),
    (f"{TASKSET}.format.prompt_key", "text", EXPERIMENT),
)
EXPLORE = deep_merge(GRPO, {"mode": "explore"})
ACTOR_CRITIC = deep_merge(GRPO, {"algorithm": {"algorithm_type": "ppo", "repeat_times": 1}})
ROWS = "buffer.trainer_input.experience_buffer"
IDLE: tuple[tuple[dict[str, object], str, object, str], ...] = (
    (GRPO, "trainer.critic.optimizer.lr", 0.5, "no critic is trained"),
    (GRPO, "trainer.critic.grad_clip", 0.5, "no critic is trained"),
    (GRPO, f"{ROWS}.format.prompt_key", "text", "nothing reads it in mode both"),
    (GRPO, f"{ROWS}.data_selector.selector_type", "shuffle", "nothing reads it in mode both"),
    (GRPO, "algorithm.loss_scale_factor", 8, "seq-mean-token-sum-norm"),
    (GRPO, "explorer.over_rollout.wait_after_min", 3.0, "ratio` is 0"),
    (EXPLORE, f"{OPTIMIZER}.lr", 0.5, "nothing reads it in mode explore"),
    (EXPLORE, "buffer.train_batch_size", 8, "nothing reads it in mode explore"),
    (EXPLORE, "trainer.rank_num", 2, "nothing reads it in mode explore"),
    (EXPLORE, "synchronizer.sync_interval", 2, "nothing reads it in mode explore"),
    (SFT, "model.temperature", 0.5, "nothing reads it in mode train"),
    (SFT, "algorithm.repeat_times", 4, "nothing reads it in mode train"),
    (SFT, "buffer.batch_size", 4, "nothing reads it in mode train"),
    (SFT, "explorer.rollout_model.dtype", "float32", "nothing reads it in mode train"),
)
"""A file, a key that does nothing in it, and the reason that is given."""


def nested(key: str, value: object) -> dict[str, object]:
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def planned(root: Path, *changes: dict[str, object], base: object = GRPO) -> ExperimentPlan:
    assert isinstance(base, dict)
    values: dict[str, object] = {"checkpoint_root_dir": str(root)}
    for change in changes:
        values = deep_merge(values, change)
    plan = plan_experiment(config(base, **values))
    plan.job_path.mkdir(parents=True, exist_ok=True)
    return plan


def compared(
    root: Path, before: dict[str, object], now: dict[str, object], base: object = GRPO
) -> ChangedRun:
    store_plan(planned(root, before, base=base))
    changed = changed_run(planned(root, before, now, base=base))
    assert changed is not None
    return changed


def kinds(changed: ChangedRun) -> set[ChangeKind]:
    return {change.kind for change in changed.changes}


def test_the_table_is_as_long_as_it_says() -> None:
    assert len(CASES) >= 60
    assert len({kind for *_, kind in CASES}) == 3


@as_subtests(("key", "value", "kind"), CASES)
def test_each_changed_file_is_of_its_kind(
    tmp_path: Path, key: str, value: object, kind: ChangeKind
) -> None:
    changed = compared(tmp_path, {}, nested(key, value))
    assert max(kinds(changed), key=list(ChangeKind).index) is kind
    worst = [change for change in changed.changes if change.kind is kind]
    names = {plain_key(change.key) for change in worst}
    assert any(name.startswith(plain_key(key)) or plain_key(key).startswith(name) for name in names)
    assert all(change.why for change in worst)
    assert all(change.instead for change in changed.impossible)


@as_subtests(("key", "value", "kind"), CASES)
def test_the_launcher_goes_by_the_kind(
    tmp_path: Path, key: str, value: object, kind: ChangeKind
) -> None:
    store_plan(planned(tmp_path))
    changed = planned(tmp_path, nested(key, value))
    accepted = {FREE: (False, True), EXPERIMENT: (True,), IMPOSSIBLE: ()}[kind]
    for accepts in (False, True):
        if accepts in accepted:
            assert check_resumable(changed, accepts_changes=accepts) is not None
        else:
            with pytest.raises(UserError, match=plain_key(key).rpartition(".")[2]):
                check_resumable(changed, accepts_changes=accepts)


@as_subtests(("base", "key", "value", "why"), IDLE)
def test_what_does_nothing_is_free(
    tmp_path: Path, base: dict[str, object], key: str, value: object, why: str
) -> None:
    changed = compared(tmp_path, {}, nested(key, value), base=base)
    assert kinds(changed) <= {FREE}
    assert all(why in change.why and not change.rounds for change in changed.changes)


def test_what_does_nothing_elsewhere_acts_where_it_is_read(tmp_path: Path) -> None:
    changed = compared(tmp_path, {}, nested("trainer.critic.optimizer.lr", 0.5), base=ACTOR_CRITIC)
    assert kinds(changed) == {EXPERIMENT}


def test_a_default_reward_of_evaluations_alone_is_free(tmp_path: Path) -> None:
    default = "buffer.explorer_input.default_reward_fn_type"
    evaluated = nested("buffer.explorer_input.eval_tasksets", [HELD_OUT])
    own = deep_merge(evaluated, nested(f"{TASKSET}.default_reward_fn_type", "math_reward"))
    now = nested(default, "accuracy_reward")
    assert kinds(compared(tmp_path, own, now)) == {FREE}
    assert kinds(compared(tmp_path / "used", evaluated, now)) == {EXPERIMENT}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ENGINE}.enable_prefix_caching", False),
        ("cluster.gpu_per_node", 2),
        ("trainer.offload_policy", True),
        (f"{ROWS}.max_read_timeout", 60),
    ],
)
def test_other_bits_are_recorded(tmp_path: Path, key: str, value: object) -> None:
    changed = compared(tmp_path, {}, nested(key, value))
    assert any(change.rounds and change.is_recorded for change in changed.changes)


@as_subtests(
    ("key", "value"),
    [
        (f"{OPTIMIZER}.lr_warmup_steps", 0),
        (f"{OPTIMIZER}.lr_warmup_steps", 1),
        (f"{OPTIMIZER}.min_lr_ratio", 0.5),
        (f"{OPTIMIZER}.lr_wsd_decay_steps", 3),
        (f"{OPTIMIZER}.lr_warmup_init", 0.5),
        ("buffer.train_batch_size", 32),
        ("algorithm.advantage_fn", "grpo"),
        ("algorithm.policy_loss_fn", "ppo"),
        ("algorithm.policy_loss_fn_args.clip_range", 0.2),
        ("trainer.max_token_len_per_gpu", 16384),
        ("buffer.total_epochs", 7),
        ("trainer.rank_num", 1),
        ("service.data_juicer.port", 5005),
    ],
)
def test_what_comes_to_the_same_is_no_change(tmp_path: Path, key: str, value: object) -> None:
    written = planned(tmp_path, nested(key, value))
    store_plan(planned(tmp_path))
    changed = changed_run(written)
    assert changed is not None
    assert not [change for change in changed.changes if change.kind is not FREE], changed.changes


@pytest.mark.parametrize(
    "schedule",
    [
        {"lr_scheduler_type": "cosine"},
        {"lr_scheduler_type": "linear"},
        {"lr_scheduler_type": "WSD"},
        {"lr_warmup_steps_ratio": 0.1},
    ],
)
@pytest.mark.parametrize("key", ["buffer.total_steps", "trainer.total_steps"])
def test_more_steps_stretch_some_schedules(
    tmp_path: Path, schedule: dict[str, object], key: str
) -> None:
    before = deep_merge(nested(OPTIMIZER, schedule), nested(key, 8))
    changed = compared(tmp_path, before, nested(key, 9))
    assert kinds(changed) == {EXPERIMENT}
    assert "stretched" in changed.changes[0].why
    constant = compared(tmp_path / "constant", nested(key, 8), nested(key, 9))
    assert kinds(constant) == {FREE}


def test_a_moved_model_and_moved_data_are_the_same_by_their_content(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"hidden_size": 8}')
    (model / "model.safetensors").write_bytes(b"weights")
    rows = tmp_path / "train.jsonl"
    write_rows(rows, {"question": "1+1", "answer": "2"})

    def at(model: Path, rows: Path) -> dict[str, object]:
        return deep_merge(
            nested("model.model_path", str(model)), nested(f"{TASKSET}.path", str(rows))
        )

    store_plan(planned(tmp_path, at(model, rows)))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(model, elsewhere / "model")
    shutil.move(rows, elsewhere / "rows.jsonl")
    moved = planned(tmp_path, at(elsewhere / "model", elsewhere / "rows.jsonl"))
    changed = check_resumable(moved)
    assert changed is not None
    assert kinds(changed) == {FREE}
    (elsewhere / "model" / "model.safetensors").write_bytes(b"Weights")
    (elsewhere / "rows.jsonl").write_text('{"question": "1+1", "answer": "3"}\n')
    changed = changed_run(moved)
    assert changed is not None
    assert {change.key for change in changed.impossible} == {"model.model_path", f"{TASKSET}.path"}


def test_other_rows_need_another_name(tmp_path: Path) -> None:
    store_plan(planned(tmp_path))
    moved = planned(tmp_path, nested(f"{TASKSET}.path", "/data/harder.jsonl"))
    with pytest.raises(UserError, match=rf"another name too: `{TASKSET}\.name`"):
        check_resumable(moved, accepts_changes=True)
    named = planned(tmp_path, nested(TASKSET, {"name": "harder", "path": "/data/harder.jsonl"}))
    with pytest.raises(UserError, match="--accept"):
        check_resumable(named, accept_command="trinity run --accept-changes")
    assert check_resumable(named, accepts_changes=True) is not None


def test_rows_of_training_data_keep_to_their_name_too(tmp_path: Path) -> None:
    rows = "buffer.trainer_input.experience_buffer"
    changed = compared(tmp_path, {}, nested(f"{rows}.path", "/data/more.jsonl"), base=SFT)
    assert [change.key for change in changed.impossible] == [f"{rows}.path"]
    both = {"path": "/data/more.jsonl", "name": "more"}
    changed = compared(tmp_path / "named", {}, nested(rows, both), base=SFT)
    assert kinds(changed) == {EXPERIMENT}


def staged(root: Path, *changes: dict[str, object], **of_stages: object) -> ExperimentPlan:
    imitation = deep_merge(IMITATION, {"trainer": {"total_steps": of_stages.get("first", 5)}})
    imitation = deep_merge(imitation, of_stages.get("imitation", {}))  # type: ignore[arg-type]
    return planned(root, {"stages": [imitation, dict(REINFORCEMENT)]}, *changes)


def test_a_stage_that_a_later_one_began_with_stays_as_it_was(tmp_path: Path) -> None:
    plan = staged(tmp_path)
    store_plan(plan)
    longer = staged(tmp_path, first=9)
    rate = {"algorithm": {"optimizer": {"lr": 0.1}}}
    other = staged(tmp_path, imitation=rate)
    assert kinds(changed_run(longer) or pytest.fail()) == {FREE}
    assert kinds(changed_run(other) or pytest.fail()) == {EXPERIMENT}
    for stage in plan.stages:
        (plan.job_path / "stages" / stage.name / "weights").mkdir(parents=True)
    for changed in (longer, other):
        with pytest.raises(UserError, match=r"stage `sft` is finished.*resume_path"):
            check_resumable(changed, accepts_changes=True)
    for_both = staged(tmp_path, {"algorithm": {"optimizer": {"lr": 0.1}}})
    accepted = check_resumable(for_both, accepts_changes=True)
    assert accepted is not None, "it acts in the stage that is not finished"


def test_other_stages_are_impossible(tmp_path: Path) -> None:
    store_plan(staged(tmp_path))
    with pytest.raises(UserError, match=r"`stages: main` \(sft, rft before\) is impossible"):
        check_resumable(planned(tmp_path), accepts_changes=True)


@pytest.mark.parametrize(
    ("change", "is_longer"),
    [
        ({"buffer": {"total_steps": 11}}, True),
        ({"buffer": {"total_steps": 9}}, False),
        ({"buffer": {"total_steps": 10}, "trainer": {"total_steps": 10}}, False),
        ({"buffer": {"total_steps": None}}, True),
        ({"trainer": {"save_interval": 3}}, False),
    ],
)
def test_a_run_is_longer_or_not(tmp_path: Path, change: dict[str, object], is_longer: bool) -> None:
    assert compared(tmp_path, {}, change).is_longer is is_longer


def test_epochs_count_where_the_data_decide(tmp_path: Path) -> None:
    by_data: dict[str, object] = {"buffer": {"total_steps": None, "total_epochs": 2}}
    assert compared(tmp_path, by_data, nested("buffer.total_epochs", 3)).is_longer
    assert not compared(tmp_path / "fewer", by_data, nested("buffer.total_epochs", 1)).is_longer


def test_notes_say_what_a_change_does(tmp_path: Path) -> None:
    change = deep_merge(
        nested(f"{ENGINE}.gpu_memory_utilization", 0.5), nested(f"{OPTIMIZER}.lr", 0.5)
    )
    free, experiment = compared(tmp_path, {}, change).notes()
    assert "`explorer.rollout_model.gpu_memory_utilization: 0.5` (0.9 before)" in free
    assert "same bits are no longer promised" in free
    assert "`algorithm.optimizer.lr: 0.5` (1e-06 before), which changes the exp" in experiment


def test_each_key_of_the_schema_has_one_rule() -> None:
    known = [key for rule in RULES for key in rule.keys]
    assert len(known) == len(set(known))
    acting = {plain_key(key.path) for key in all_keys() if key.status is KeyStatus.ACTS}
    leaves = [key for key in all_keys() if key.status is KeyStatus.ACTS and not key.is_section]
    lost = [key.path for key in leaves if not _has_rule(plain_key(key.path), known)]
    assert not lost
    own = re.compile(r".*(override_config\.attn_implementation|\.extra_engine_args\.\w+)")
    assert not [key for key in known if key not in acting and not own.fullmatch(key)]
    assert rule_of("service.nothing.yet").kind is FREE


def _has_rule(key: str, known: list[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in known)


def test_a_damaged_record_of_content_is_as_none(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    store_plan(plan)
    (plan.job_path / "content.json").write_text(json.dumps([]))
    changed = changed_run(planned(tmp_path, nested("model.model_path", "/models/other")))
    assert changed is not None
    assert changed.impossible


def changed(before: ExperimentPlan, now: ExperimentPlan) -> dict[str, tuple[str, str, str]]:
    """Returns the sentences about each key: its kind, the value now, and why."""
    told = compare_plans(before, now, lambda *_: False, finished=()).changes
    return {change.key: (change.kind, change.now, change.why) for change in told}


def from_tree(tree: Mapping[str, object], **changes: object) -> ExperimentPlan:
    return plan_experiment(config(deep_merge(tree, changes)))


def test_a_change_of_one_stage_names_it() -> None:
    quick = deep_merge(IMITATION, {"algorithm": {"optimizer": {"lr": 0.5}}})
    was = from_tree(GRPO, stages=[IMITATION, REINFORCEMENT])
    told = changed(was, from_tree(GRPO, stages=[quick, REINFORCEMENT]))
    assert told[f"{OPTIMIZER}.lr"][2].endswith("the optimizer, in stage `sft`")
    both = [
        deep_merge(stage, {"trainer": {"grad_clip": 0.5}}) for stage in (IMITATION, REINFORCEMENT)
    ]
    assert not changed(was, from_tree(GRPO, stages=both))["trainer.grad_clip"][2].endswith("`")


def test_the_order_of_tasksets_is_data_and_their_names_are_told() -> None:
    first, second = {"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}
    was, swapped = several(first, second), several(second, first)
    key = "buffer.explorer_input.tasksets"
    assert changed(was, swapped)[key][:2] == (EXPERIMENT, "b, a")
    assert changed(was, was) == {}
    assert changed(was, several(first))[key][:2] == (EXPERIMENT, "a")


def several(*tasksets: object) -> ExperimentPlan:
    explorer_input = {"default_workflow_type": "simple_workflow", "tasksets": list(tasksets)}
    buffer = {"batch_size": 4, "total_steps": 10, "explorer_input": explorer_input}
    return plan_experiment(config({**GRPO, "buffer": buffer}))


def test_turns_and_the_place_of_experiences_are_free_and_are_told() -> None:
    turns = changed(from_tree(GRPO), from_tree(GRPO, mode="colocate"))
    assert turns["mode"][:2] == (FREE, "colocate")
    rows = {"experience_buffer": {"path": "sqlite:////data/x.db"}}
    sunk = changed(from_tree(GRPO), from_tree(GRPO, buffer={"trainer_input": rows}))
    assert sunk["buffer.trainer_input.experience_buffer.path"][:2] == (FREE, "sqlite:////data/x.db")
