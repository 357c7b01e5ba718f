"""Compares the plan that a run goes on with to the one before, setting by setting."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trinity.config.change_rules import (
    NEW_RUN,
    ChangeKind,
    ChangeRule,
    HoldsFrom,
    plain_key,
    rule_of,
)
from trinity.config.key_modes import modes_of
from trinity.config.plan.experience_sink import experience_sink
from trinity.config.plan.parts import ResolvedExperienceBuffer, ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.base import format_value, redact_secrets
from trinity.config.schema.choices import BY_TURNS, LearningRateSchedule
from trinity.runtime.json_values import JsonValue

DataSource = ResolvedTaskset | ResolvedExperienceBuffer
SameContent = Callable[[str, str], bool]
"""Returns true when two paths hold the same content."""

DERIVED: Mapping[str, Callable[[StagePlan], JsonValue]] = {
    "algorithm.algorithm_type": lambda plan: plan.algorithm_type,
    "algorithm.repeat_times": lambda plan: plan.algorithm.repeat_times,
    "algorithm.advantage_fn": lambda plan: plan.algorithm.advantage_fn,
    "algorithm.advantage_fn_args": lambda plan: plan.algorithm.advantage_fn_args,
    "algorithm.sample_strategy": lambda plan: plan.algorithm.sample_strategy,
    "algorithm.sample_strategy_args": lambda plan: plan.algorithm.sample_strategy_args,
    "algorithm.policy_loss_fn": lambda plan: plan.algorithm.policy_loss_fn,
    "algorithm.policy_loss_fn_args": lambda plan: plan.algorithm.policy_loss_fn_args,
    "algorithm.kl_penalty_fn": lambda plan: plan.algorithm.kl_penalty_fn,
    "algorithm.kl_penalty_fn_args": lambda plan: plan.algorithm.kl_penalty_fn_args,
    "algorithm.kl_loss_fn": lambda plan: plan.algorithm.kl_loss_fn,
    "algorithm.kl_loss_fn_args": lambda plan: plan.algorithm.kl_loss_fn_args,
    "algorithm.entropy_loss_fn": lambda plan: plan.algorithm.entropy_loss_fn,
    "algorithm.entropy_loss_fn_args": lambda plan: plan.algorithm.entropy_loss_fn_args,
    "algorithm.loss_agg_mode": lambda plan: plan.algorithm.loss_agg_mode,
    "buffer.train_batch_size": lambda plan: plan.train_batch_size,
    "buffer.trainer_input.experience_buffer.max_read_timeout": (
        lambda plan: plan.experience_buffer.incomplete_after
    ),
    "buffer.train_step": lambda plan: plan.train_step,
    "explorer.eval_interval": lambda plan: plan.eval_interval,
    "model.max_model_len": lambda plan: plan.max_model_len,
    "model.max_prompt_tokens": lambda plan: plan.max_prompt_tokens,
    "model.max_response_tokens": lambda plan: plan.max_response_tokens,
    "model.min_response_tokens": lambda plan: plan.min_response_tokens,
    "model.custom_chat_template": lambda plan: plan.chat_template,
    "model.chat_template_path": lambda plan: plan.chat_template,
    "model.model_path": lambda plan: plan.model_path,
    "model.critic_model_path": lambda plan: plan.critic_model_path,
    "algorithm.distillation.model_path": lambda plan: plan.teacher_model_path,
    "trainer.max_token_len_per_gpu": lambda plan: plan.max_token_len_per_gpu,
    "trainer.resume_from_path": lambda plan: plan.start_checkpoint,
}
"""Keys that are compared by what they come to: a default that is written down changes nothing."""
STEP_KEYS = ("buffer.total_steps", "buffer.total_epochs", "trainer.total_steps")
MODEL_PATHS = (
    "model.model_path",
    "model.critic_model_path",
    "algorithm.distillation.model_path",
)
_NORM = "seq-mean-token-sum-norm"
Switch = Callable[[StagePlan], bool]
SWITCHES: Mapping[str, tuple[Switch, str]] = {
    "trainer.critic": (lambda plan: plan.needs_critic, "no critic is trained"),
    "trainer.critic_warmup": (lambda plan: plan.needs_critic, "no critic is trained"),
    "algorithm.loss_scale_factor": (
        lambda plan: (
            _NORM in (plan.algorithm.loss_agg_mode, plan.config.trainer.critic.loss_agg_mode)
        ),
        f"only `loss_agg_mode: {_NORM}` divides by it",
    ),
    "explorer.over_rollout.wait_after_min": (
        lambda plan: plan.config.explorer.over_rollout.ratio > 0,
        "`explorer.over_rollout.ratio` is 0",
    ),
    "explorer.over_rollout.return_partial_tasks": (
        lambda plan: plan.config.explorer.over_rollout.ratio > 0,
        "`explorer.over_rollout.ratio` is 0",
    ),
    "buffer.trainer_input.auxiliary_buffers": (
        lambda plan: plan.expert_buffer is not None,
        "no batch takes rows from it",
    ),
}
"""Keys that act where something else is on, and the reason where it is off."""
SCHEDULE_KEYS = (
    "lr",
    "lr_scheduler_type",
    "lr_warmup_steps",
    "lr_warmup_steps_ratio",
    "lr_warmup_init",
    "min_lr_ratio",
    "lr_wsd_decay_steps",
    "lr_wsd_decay_style",
)
SCHEDULES: Mapping[str, Callable[[StagePlan], LearningRateSchedule]] = {
    "algorithm.optimizer": lambda plan: plan.lr_schedule,
    "trainer.critic.optimizer": lambda plan: plan.critic_lr_schedule,
}
PLACE_KEYS = ("name", "storage_type", "path", "table", "split", "subset_name")
"""Keys of a taskset that say which rows it has."""
TASKSETS = "buffer.explorer_input."
TASK_DEFAULTS = (f"{TASKSETS}default_workflow_type", f"{TASKSETS}default_reward_fn_type")
ROWS = "buffer.trainer_input.experience_buffer."
RANKS = "trainer.rank_num"
ADVANTAGE_PLACE = "the rows that wait were made for the service that computed the advantages"
BY_TURNS_WHY = "engine and trainer work side by side, or by turns, with the same results"
SINK_WHY = "experiences are also written there, all those of the stage, and no longer elsewhere"
OTHER_MODELS = "its checkpoints hold other models than these: with a critic, or without one"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """One setting that differs, and what becomes of the run."""

    key: str
    before: str
    """As YAML, without secrets."""
    now: str
    kind: ChangeKind
    why: str
    instead: str = ""
    rounds: bool = False
    holds_from: HoldsFrom = "training"

    @property
    def is_recorded(self) -> bool:
        """True if it changes what comes out of the steps that follow."""
        return self.kind is ChangeKind.EXPERIMENT or self.rounds

    def __str__(self) -> str:
        return f"`{self.key}: {self.now}` ({self.before} before)"


def stage_changes(
    before: StagePlan, now: StagePlan, same_content: SameContent
) -> tuple[PlanChange, ...]:
    """Returns what differs between two plans of a stage, in the order of the documentation."""
    derived = list(_derived_changes(before, now))
    explained = {change.key for change in derived}
    compared = (
        *_written_changes(before, now, same_content),
        *_source_changes(before, now, same_content),
    )
    changes = [*derived, *(change for change in compared if change.key not in explained)]
    if not any(change.kind is ChangeKind.IMPOSSIBLE for change in changes):
        changes += _row_count_changes(before, now)
    return tuple(sorted(changes, key=_place_of))


def _place_of(change: PlanChange) -> tuple[int, str]:
    return (list(ChangeKind).index(change.kind), change.key)


def _written_changes(
    before: StagePlan, now: StagePlan, same_content: SameContent
) -> list[PlanChange]:
    """Compares the configurations, leaving out what comes to the same."""
    old, new = _written(before), _written(now)
    found = []
    for key, (was, is_now) in differing_values(old, new).items():
        if _is_without_effect(key, before, now):
            continue
        if plain_key(key) in DERIVED:
            value = DERIVED[plain_key(key)]
            was, is_now = value(before), value(now)
        change = _change(key, was, is_now, rule_of(key))
        found.append(_adjusted(change, (was, is_now), before, now, same_content))
    return found


def _written(plan: StagePlan) -> Any:
    return redact_secrets("", json.loads(plan.config.model_dump_json()))


def _is_without_effect(key: str, before: StagePlan, now: StagePlan) -> bool:
    name = plain_key(key)
    if name.startswith(TASKSETS):
        if (before.tasksets, before.eval_tasksets) == (now.tasksets, now.eval_tasksets):
            return True
        return name.rpartition(".")[2] in PLACE_KEYS
    if name.startswith(ROWS) and name.rpartition(".")[2] in PLACE_KEYS:
        return name.removeprefix(ROWS) != "storage_type" or now.needs_rollout
    if name in STEP_KEYS:
        return _length_of(before) == _length_of(now)
    if name == RANKS:
        return True  # compared by the number that it comes to
    section, _, last = name.rpartition(".")
    if section in SCHEDULES and last in SCHEDULE_KEYS:
        schedule = SCHEDULES[section]
        return schedule(before).acting() == schedule(now).acting()
    value = DERIVED.get(name)
    return value is not None and value(before) == value(now)


def _length_of(plan: StagePlan) -> tuple[int | None, int | None, int | None]:
    explore, train = plan.total_explore_steps, plan.total_train_steps
    by_data = (explore is None and plan.needs_rollout) or (train is None and plan.needs_training)
    return explore, train, plan.config.buffer.total_epochs if by_data else None


def _adjusted(
    change: PlanChange,
    values: tuple[JsonValue, JsonValue],
    before: StagePlan,
    now: StagePlan,
    same_content: SameContent,
) -> PlanChange:
    """Returns the change as it is in these two plans: some keys' rules depend on other ones."""
    name = plain_key(change.key)
    if idle := _idle_reason(name, before, now):
        return replace(change, kind=ChangeKind.FREE, why=idle, instead="", rounds=False)
    if name == "cluster.gpu_per_node" and not all(values):
        return replace(change, rounds=True)
    if name in STEP_KEYS and now.needs_training and _stretches(before, now):
        return replace(
            change,
            kind=ChangeKind.EXPERIMENT,
            why="the learning rate's schedule is stretched over the new number of steps",
        )
    if name in MODEL_PATHS or name == "explorer.auxiliary_models.model_path":
        paths = [str(value) for value in values if value]
        if len(paths) == len(values) and same_content(*paths):
            return replace(
                change, kind=ChangeKind.FREE, why="the same files at another path", instead=""
            )
    return change


def _idle_reason(name: str, before: StagePlan, now: StagePlan) -> str:
    """Returns the reason for which the key does nothing in both plans; empty if it may act."""
    if now.mode == before.mode and now.mode not in modes_of(name):
        return f"nothing reads it in mode {now.mode}"
    for key, (is_on, why) in SWITCHES.items():
        if (name == key or name.startswith(f"{key}.")) and not (is_on(before) or is_on(now)):
            return why
    if name in TASK_DEFAULTS and before.tasksets == now.tasksets:
        return "only evaluation uses it"
    return ""


def _stretches(before: StagePlan, now: StagePlan) -> bool:
    schedules = [before.lr_schedule, now.lr_schedule]
    if now.needs_critic:
        schedules += [before.critic_lr_schedule, now.critic_lr_schedule]
    return any(schedule.needs_total for schedule in schedules)


def _derived_changes(before: StagePlan, now: StagePlan) -> Iterator[PlanChange]:
    """Yields changes of values that follow from several keys."""
    ranks = before.trainer_rank_num, now.trainer_rank_num
    if now.needs_training and before.needs_training and ranks[0] != ranks[1]:
        yield _change(RANKS, *ranks, rule_of(RANKS))
    for why, old, new in (
        (
            ADVANTAGE_PLACE,
            before.algorithm.advantage_in_trainer,
            now.algorithm.advantage_in_trainer,
        ),
        (OTHER_MODELS, before.needs_critic, now.needs_critic),
    ):
        if old != new:
            change = _algorithm_change(before, now)
            yield replace(change, kind=ChangeKind.IMPOSSIBLE, why=why, instead=NEW_RUN)
            break
    yield from _place_changes(before, now)


def _place_changes(before: StagePlan, now: StagePlan) -> Iterator[PlanChange]:
    """Yields changes of where and when the parts work, which change no result."""
    modes = [BY_TURNS if plan.takes_turns else plan.mode for plan in (before, now)]
    if before.mode == now.mode and modes[0] != modes[1]:
        yield _free_change("mode", modes[0], modes[1], BY_TURNS_WHY)
    places = [sink.shown if (sink := experience_sink(plan)) else None for plan in (before, now)]
    if places[0] != places[1]:
        yield _free_change(f"{ROWS}path", places[0], places[1], SINK_WHY)


def _free_change(key: str, before: JsonValue, now: JsonValue, why: str) -> PlanChange:
    changed = _change(key, before, now, rule_of(key))
    return replace(changed, kind=ChangeKind.FREE, why=why, instead="", rounds=False)


def _algorithm_change(before: StagePlan, now: StagePlan) -> PlanChange:
    names = before.algorithm_type, now.algorithm_type
    if names[0] != names[1]:
        return _change("algorithm.algorithm_type", *names, rule_of("algorithm.algorithm_type"))
    key = "algorithm.advantage_fn"
    return _change(key, before.algorithm.advantage_fn, now.algorithm.advantage_fn, rule_of(key))


def _row_count_changes(before: StagePlan, now: StagePlan) -> Iterator[PlanChange]:
    """Yields a change of the rows of a step that no key alone tells."""
    rule = rule_of("buffer.train_batch_size")
    for key, old, new in (
        ("algorithm.repeat_times", before.algorithm.repeat_times, now.algorithm.repeat_times),
        ("buffer.train_batch_size", before.train_batch_size, now.train_batch_size),
        ("algorithm.sample_strategy_args", before.num_expert_rows, now.num_expert_rows),
        ("buffer.batch_size", before.rows_per_explore_step, now.rows_per_explore_step),
        ("buffer.train_step", before.train_step, now.train_step),
    ):
        if old != new and not _idle_reason(key, before, now):
            yield _change(key, old, new, rule)
            return


def _source_changes(
    before: StagePlan, now: StagePlan, same_content: SameContent
) -> Iterator[PlanChange]:
    """Yields tasksets and files of other rows; a stage keeps the rows that it has under a name."""
    orders = [[taskset.name for taskset in plan.tasksets] for plan in (before, now)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        key = f"{TASKSETS}tasksets"  # tasks are dealt to them in their order
        yield _change(key, ", ".join(orders[0]), ", ".join(orders[1]), rule_of(key))
    known = dict(_sources(before))
    names = {source.name: source for source in known.values()}
    for key, source in _sources(now):
        is_eval = isinstance(source, ResolvedTaskset) and source.is_eval
        old = names.get(source.name)
        if old is None:
            was = known.get(key)
            rule = rule_of(f"{TASKSETS}eval_tasksets" if is_eval else f"{TASKSETS}taskset")
            yield _change(f"{key}.name", was.name if was else None, source.name, rule)
        elif _place(old) != _place(source):
            yield _moved(key, old, source, same_content)


def _moved(key: str, old: DataSource, source: DataSource, same_content: SameContent) -> PlanChange:
    was, is_now = _place(old), _place(source)
    name = next(name for name in was if was[name] != is_now[name])
    change = _change(f"{key}.{name}", was[name], is_now[name], rule_of(f"{TASKSETS}eval_tasksets"))
    others = [other for other in was if other != "path" and was[other] != is_now[other]]
    if not others and old.path and source.path and same_content(old.path, source.path):
        return replace(change, why="the same files at another path")
    return replace(
        change,
        kind=ChangeKind.IMPOSSIBLE,
        why=f"the run has stored its rows under the name `{source.name}`",
        instead=f"give the new rows another name too: `{key}.name`",
    )


def _place(source: DataSource) -> dict[str, JsonValue]:
    return {name: getattr(source, name) for name in PLACE_KEYS if name != "name"}


def _sources(plan: StagePlan) -> Iterator[tuple[str, DataSource]]:
    """Yields what a stage reads rows from, by its key."""
    own = plan.config.buffer.explorer_input
    places = ["taskset"] if own.taskset is not None else []
    places += [f"tasksets[{index}]" for index in range(len(own.tasksets))]
    for place, taskset in zip(places, plan.tasksets, strict=False):
        yield f"{TASKSETS}{place}", taskset
    for index, taskset in enumerate(plan.eval_tasksets):
        yield f"{TASKSETS}eval_tasksets[{index}]", taskset
    reads_file = not plan.has_rollouts and plan.stored_batches is None
    if reads_file:
        yield ROWS.rstrip("."), plan.experience_buffer
    if plan.expert_buffer is not None:
        name = plan.expert_buffer.name
        yield f"buffer.trainer_input.auxiliary_buffers.{name}", plan.expert_buffer


def _change(key: str, before: JsonValue, now: JsonValue, rule: ChangeRule) -> PlanChange:
    return PlanChange(
        key=key,
        before=format_value(key, _names_of(before)),
        now=format_value(key, _names_of(now)),
        kind=rule.kind,
        why=rule.why,
        instead=rule.instead,
        rounds=rule.rounds,
        holds_from=rule.holds_from,
    )


def _names_of(value: JsonValue) -> JsonValue:
    """Returns the names of the sections of a list, which tell more than their beginnings."""
    if not isinstance(value, list) or not value:
        return value
    names = [item.get("name") for item in value if isinstance(item, dict)]
    return ", ".join(map(str, names)) if len(names) == len(value) and all(names) else value


def differing_values(
    old: JsonValue, new: JsonValue, at: str = ""
) -> dict[str, tuple[JsonValue, JsonValue]]:
    """Returns the keys at which two JSON values differ, with both values.

    Lists of the same length are compared item by item where these have keys.
    """
    pairs: Iterable[tuple[str, JsonValue, JsonValue]]
    if isinstance(old, dict) and isinstance(new, dict):
        names = dict.fromkeys((*old, *new))
        pairs = ((f"{at}.{name}".lstrip("."), old.get(name), new.get(name)) for name in names)
    elif _are_alike(old, new):
        assert isinstance(old, list)
        assert isinstance(new, list)
        items = enumerate(zip(old, new, strict=True))
        pairs = ((f"{at}[{index}]", was, is_now) for index, (was, is_now) in items)
    else:
        return {} if old == new else {at: (old, new)}
    return {
        key: values
        for at_key, was, is_now in pairs
        for key, values in differing_values(was, is_now, at_key).items()
    }


def _are_alike(old: JsonValue, new: JsonValue) -> bool:
    if not (isinstance(old, list) and isinstance(new, list) and len(old) == len(new)):
        return False
    return bool(old) and all(isinstance(item, dict) for item in (*old, *new))
