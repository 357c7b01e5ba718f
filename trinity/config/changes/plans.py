"""Compares the plan that a run goes on with to the one before, setting by setting."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from trinity.config.changes.rules import NEW_RUN, ChangeKind, HoldsFrom, plain_key, rule_of
from trinity.config.key_modes import modes_of
from trinity.config.loading.keys import names, under
from trinity.config.plan.experience_sink import experience_sink
from trinity.config.plan.parts import ResolvedRows, ResolvedTaskset
from trinity.config.plan.stage_length import ExperimentLengths
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.schema.base import format_value, redact_secrets
from trinity.config.schema.choices import BY_TURNS, LearningRateSchedule
from trinity.runtime.json_values import JsonValue

SameContent = Callable[[str, str], bool]
"""Returns true when two paths hold the same content."""

_ROWS = "buffer.trainer_input.experience_buffer"
_TASKSETS = "buffer.explorer_input."
_TEACHER = "algorithm.distillation.model_path"
DERIVED: Mapping[str, str] = {
    **{
        key: key
        for key in under(
            "algorithm",
            "algorithm_type repeat_times loss_agg_mode advantage_fn advantage_fn_args "
            "sample_strategy sample_strategy_args policy_loss_fn policy_loss_fn_args "
            "kl_penalty_fn kl_penalty_fn_args kl_loss_fn kl_loss_fn_args entropy_loss_fn "
            "entropy_loss_fn_args",
        )
    },
    **{
        f"model.{name}": name
        for name in names(
            "max_model_len max_prompt_tokens max_response_tokens min_response_tokens model_path "
            "critic_model_path"
        )
    },
    "buffer.train_batch_size": "train_batch_size",
    "buffer.train_step": "train_step",
    f"{_ROWS}.max_read_timeout": "experience_buffer.incomplete_after",
    "explorer.eval_interval": "eval_interval",
    "model.custom_chat_template": "chat_template",
    "model.chat_template_path": "chat_template",
    _TEACHER: "teacher_model_path",
    "trainer.max_token_len_per_gpu": "max_token_len_per_gpu",
    "trainer.resume_from_path": "start_checkpoint",
}
"""Keys that are compared by their values in the plan: writing a default down changes nothing."""
STEP_KEYS = ("buffer.total_steps", "buffer.total_epochs", "trainer.total_steps")
_MODEL_PATHS = (
    *("model.model_path", "model.critic_model_path", _TEACHER),
    "explorer.auxiliary_models.model_path",
)
_NORM = "seq-mean-token-sum-norm"
_NO_CRITIC = "no critic is trained"
_NO_RATIO = "`explorer.over_rollout.ratio` is 0"


_RATIO = attrgetter("config.explorer.over_rollout.ratio")
SWITCHES: Mapping[str, tuple[Callable[[StagePlan], object], str]] = {
    "trainer.critic": (attrgetter("needs_critic"), _NO_CRITIC),
    "trainer.critic_warmup": (attrgetter("needs_critic"), _NO_CRITIC),
    "algorithm.loss_scale_factor": (
        lambda plan: (
            _NORM in (plan.algorithm.loss_agg_mode, plan.config.trainer.critic.loss_agg_mode)
        ),
        f"only `loss_agg_mode: {_NORM}` divides by it",
    ),
    "explorer.over_rollout.wait_after_min": (_RATIO, _NO_RATIO),
    "explorer.over_rollout.return_partial_tasks": (_RATIO, _NO_RATIO),
    "buffer.trainer_input.auxiliary_buffers": (
        lambda plan: plan.expert_buffer is not None,
        "no batch takes rows from it",
    ),
}
"""Keys that act where something else is on, and the reason where it is off."""
SCHEDULE_KEYS = names(
    "lr lr_scheduler_type lr_warmup_steps lr_warmup_steps_ratio lr_warmup_init min_lr_ratio "
    "lr_wsd_decay_steps lr_wsd_decay_style"
)
SCHEDULES: Mapping[str, Callable[[StagePlan], LearningRateSchedule]] = {
    "algorithm.optimizer": attrgetter("lr_schedule"),
    "trainer.critic.optimizer": attrgetter("critic_lr_schedule"),
}
PLACE_KEYS = ("name", "storage_type", "path", "table", "split", "subset_name")
"""Keys of a taskset that say which rows it has."""
ADVANTAGE_PLACE = "the rows that wait were made for the service that computed the advantages"
BY_TURNS_WHY = "engine and trainer work side by side, or by turns, with the same results"
SINK_WHY = "experiences are also written there, all those of the stage, and no longer elsewhere"
OTHER_MODELS = "its checkpoints hold other models than these: with a critic, or without one"
SAME_FILES = "the same files at another path"
STRETCHED = "the learning rate's schedule is stretched over the new number of steps"


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

    @classmethod
    def of(cls, key: str, before: JsonValue, now: JsonValue, *, rule_key: str = "") -> "PlanChange":
        """Returns the change with the rule of its key, or of another one."""
        rule = rule_of(rule_key or key)
        return cls(
            key=key,
            before=format_value(key, _names_of(before)),
            now=format_value(key, _names_of(now)),
            kind=rule.kind,
            why=rule.why,
            instead=rule.instead,
            rounds=rule.rounds,
            holds_from=rule.holds_from,
        )

    def freed(self, why: str) -> "PlanChange":
        """Returns the same change as one that changes no result."""
        return replace(self, kind=ChangeKind.FREE, why=why, instead="", rounds=False)

    def refused(self, why: str, instead: str = NEW_RUN) -> "PlanChange":
        """Returns the same change as one that no run can go on with."""
        return replace(self, kind=ChangeKind.IMPOSSIBLE, why=why, instead=instead)

    @property
    def is_recorded(self) -> bool:
        """True if it changes the results of later steps."""
        return self.kind is ChangeKind.EXPERIMENT or self.rounds

    def __str__(self) -> str:
        return f"`{self.key}: {self.now}` ({self.before} before)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRun:
    """The differences from the run that the directory holds."""

    changes: tuple[PlanChange, ...]
    is_longer: bool = False
    """True if the last stage may have more steps than before."""

    @property
    def impossible(self) -> tuple[PlanChange, ...]:
        """Changes that no run can go on with."""
        return tuple(c for c in self.changes if c.kind is ChangeKind.IMPOSSIBLE)

    @property
    def needs_acceptance(self) -> tuple[PlanChange, ...]:
        """Changes that make it another experiment."""
        return tuple(c for c in self.changes if c.kind is ChangeKind.EXPERIMENT)

    def notes(self) -> Iterator[str]:
        """Yields a line for each change that the run goes on with."""
        for change in self.changes:
            if change.kind is ChangeKind.EXPERIMENT:
                when = "goes on with" if change.holds_from == "training" else "explores on with"
                yield f"{when} {change}, which changes the experiment: {change.why}"
            elif change.rounds:
                yield (
                    f"goes on with {change}: results may round differently from here on, so the "
                    "same bits are no longer promised"
                )
            else:
                yield f"goes on with {change}"


def compare_plans(
    before: ExperimentPlan,
    now: ExperimentPlan,
    same_content: SameContent,
    finished: Sequence[str] | None = None,
) -> ChangedRun:
    """Compares two plans of an experiment; `finished` names stages that later ones began from.

    Without it, the run's directory tells.
    """
    old, new = ([stage.name for stage in plan.stages] for plan in (before, now))
    if old != new:
        change = PlanChange.of("stages", ", ".join(old), ", ".join(new))
        why = "its stages have other names, or their number is another one"
        instead = "restore them, or give the experiment another `name`"
        return ChangedRun(changes=(change.refused(why, instead),))
    over = _stages_passed(now) if finished is None else finished
    found = {
        stage.name: stage_changes(was, stage, same_content)
        for was, stage in zip(before.stages, now.stages, strict=True)
    }
    ahead = {name: changes for name, changes in found.items() if name not in over}
    changes = [change for of_stage in ahead.values() for change in of_stage]
    open_keys = {(change.key, change.now) for change in changes}
    changes += [
        _in_finished(name, change)
        for name in over
        for change in found[name]
        if (change.key, change.now) not in open_keys
    ]
    lengths = [ExperimentLengths.model_validate(plan.model_dump()) for plan in (before, now)]
    return ChangedRun(
        changes=tuple(_with_stages(change, ahead) for change in dict.fromkeys(changes)),
        is_longer=now.stages[-1].name in lengths[1].longer_than(lengths[0]),
    )


def _stages_passed(plan: ExperimentPlan) -> list[str]:
    """Returns the stages before the last started stage, judged by their directories."""
    stages = [stage.name for stage in plan.stages]
    begun = [i for i, name in enumerate(stages) if (plan.job_path / "stages" / name).is_dir()]
    return stages[: max(begun, default=0)]


def _in_finished(stage: str, change: PlanChange) -> PlanChange:
    """Returns a change of a stage whose weights a later one began with."""
    if change.kind is ChangeKind.FREE and change.key not in STEP_KEYS:
        return replace(change, rounds=False)
    return change.refused(
        f"stage `{stage}` is finished, and a later stage began with its weights",
        f"restore it in this stage, or {NEW_RUN}",
    )


def _with_stages(change: PlanChange, ahead: Mapping[str, Sequence[PlanChange]]) -> PlanChange:
    """Returns a change that names its stages, where it is not one of all that are ahead."""
    stages = [f"`{name}`" for name, changes in ahead.items() if change in changes]
    if len(stages) in (0, len(ahead)):
        return change
    return replace(change, why=f"{change.why}, in stage {' and '.join(stages)}")


def stage_changes(
    before: StagePlan, now: StagePlan, same_content: SameContent
) -> tuple[PlanChange, ...]:
    """Returns what differs between two plans of a stage, in the order of the documentation."""
    found = [
        *_other_parts(before, now),
        *_setting_changes(before, now, same_content),
        *_source_changes(before, now, same_content),
    ]
    changes = list({change.key: change for change in reversed(found)}.values())
    if not any(change.kind is ChangeKind.IMPOSSIBLE for change in changes):
        changes += _row_count_changes(before, now)
    kinds = list(ChangeKind)
    return tuple(sorted(changes, key=lambda change: (kinds.index(change.kind), change.key)))


def _other_parts(before: StagePlan, now: StagePlan) -> Iterator[PlanChange]:
    """Yields a change of the algorithm after which rows or checkpoints do not fit any more."""
    old, new = before.algorithm, now.algorithm
    key = "algorithm_type" if old.algorithm_type != new.algorithm_type else "advantage_fn"
    change = PlanChange.of(f"algorithm.{key}", getattr(old, key), getattr(new, key))
    if old.advantage_in_trainer != new.advantage_in_trainer:
        yield change.refused(ADVANTAGE_PLACE)
    elif before.needs_critic != now.needs_critic:
        yield change.refused(OTHER_MODELS)


def _setting_changes(
    before: StagePlan, now: StagePlan, same_content: SameContent
) -> Iterator[PlanChange]:
    """Compares the settings, leaving out those that come to the same."""
    for key, values in differing_values(_settings(before), _settings(now)).items():
        name = plain_key(key)
        if _is_same(name, before, now):
            continue
        if (paths := _derived_path(name)) is not None:
            values = (_derived(paths, before), _derived(paths, now))
            if values[0] == values[1]:
                continue
        yield _adjusted(PlanChange.of(key, *values), values, before, now, same_content)


def _settings(plan: StagePlan) -> Any:
    """Returns the configuration with the values that follow from several keys."""
    tree = redact_secrets("", json.loads(plan.config.model_dump_json()))
    tree["mode"] = BY_TURNS if plan.takes_turns else plan.mode
    tree["trainer"]["rank_num"] = plan.trainer_rank_num if plan.needs_training else None
    rows = tree["buffer"]["trainer_input"]["experience_buffer"]
    if plan.needs_rollout:
        rows["path"] = sink.shown if (sink := experience_sink(plan)) else None
    return tree


def _is_same(name: str, before: StagePlan, now: StagePlan) -> bool:
    """Returns true for keys that come to the same, and for those of rows, compared as a whole."""
    section, _, last = name.rpartition(".")
    if name.startswith(_TASKSETS):
        are_same = (before.tasksets, before.eval_tasksets) == (now.tasksets, now.eval_tasksets)
        return are_same or last in PLACE_KEYS
    if section == _ROWS and last in PLACE_KEYS:
        return last != ("path" if now.needs_rollout else "storage_type")
    if name in STEP_KEYS:
        return _length_of(before) == _length_of(now)
    if section in SCHEDULES and last in SCHEDULE_KEYS:
        schedule = SCHEDULES[section]
        return schedule(before).acting() == schedule(now).acting()
    return False


def _derived_path(name: str) -> tuple[str, str] | None:
    """Returns the place of a key's value in a plan: an attribute, and a name in it if any."""
    section, _, last = name.rpartition(".")
    if name in DERIVED:
        return DERIVED[name], ""
    return (DERIVED[section], last) if section in DERIVED else None


def _derived(path: tuple[str, str], plan: StagePlan) -> JsonValue:
    value: JsonValue = attrgetter(path[0])(plan)
    return value.get(path[1]) if path[1] and isinstance(value, dict) else value


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
        return change.freed(idle)
    if name == "mode" and before.mode == now.mode:
        return change.freed(BY_TURNS_WHY)
    if name == f"{_ROWS}.path":
        return change.freed(SINK_WHY)
    if name == "cluster.gpu_per_node" and not all(values):
        return replace(change, rounds=True)
    if name in STEP_KEYS and now.needs_training and _stretches(before, now):
        return replace(change, kind=ChangeKind.EXPERIMENT, why=STRETCHED)
    if name in _MODEL_PATHS and all(values) and same_content(str(values[0]), str(values[1])):
        return change.freed(SAME_FILES)
    return change


def _idle_reason(name: str, before: StagePlan, now: StagePlan) -> str:
    """Returns the reason why the key has no effect in both plans; empty if it may act."""
    if now.mode == before.mode and now.mode not in modes_of(name):
        return f"nothing reads it in mode {now.mode}"
    for key, (is_on, why) in SWITCHES.items():
        if f"{name}.".startswith(f"{key}.") and not (is_on(before) or is_on(now)):
            return why
    defaults = (f"{_TASKSETS}default_workflow_type", f"{_TASKSETS}default_reward_fn_type")
    if name in defaults and before.tasksets == now.tasksets:
        return "only evaluation uses it"
    return ""


def _stretches(before: StagePlan, now: StagePlan) -> bool:
    schedules = [before.lr_schedule, now.lr_schedule]
    if now.needs_critic:
        schedules += [before.critic_lr_schedule, now.critic_lr_schedule]
    return any(schedule.needs_total for schedule in schedules)


def _row_count_changes(before: StagePlan, now: StagePlan) -> Iterator[PlanChange]:
    """Yields a change of the rows of a step that no key alone tells."""
    for key, place in (
        ("algorithm.repeat_times", "algorithm.repeat_times"),
        ("buffer.train_batch_size", "train_batch_size"),
        ("algorithm.sample_strategy_args", "num_expert_rows"),
        ("buffer.batch_size", "rows_per_explore_step"),
        ("buffer.train_step", "train_step"),
    ):
        old, new = (attrgetter(place)(plan) for plan in (before, now))
        if old != new and not _idle_reason(key, before, now):
            yield PlanChange.of(key, old, new, rule_key="buffer.train_batch_size")
            return


def _source_changes(
    before: StagePlan, now: StagePlan, same_content: SameContent
) -> Iterator[PlanChange]:
    """Yields tasksets and files of other rows; a stage keeps the rows that it has under a name."""
    orders = [[taskset.name for taskset in plan.tasksets] for plan in (before, now)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        key = f"{_TASKSETS}tasksets"  # tasks are dealt to them in their order
        yield PlanChange.of(key, ", ".join(orders[0]), ", ".join(orders[1]))
    known = dict(_sources(before))
    by_name = {source.name: source for source in known.values()}
    for key, source in _sources(now):
        old = by_name.get(source.name)
        if old is None:
            was = known.get(key)
            is_eval = isinstance(source, ResolvedTaskset) and source.is_eval
            rule_key = f"{_TASKSETS}{'eval_tasksets' if is_eval else 'taskset'}"
            name = was.name if was else None
            yield PlanChange.of(f"{key}.name", name, source.name, rule_key=rule_key)
        elif _place(old) != _place(source):
            yield _moved(key, old, source, same_content)


def _moved(
    key: str, old: ResolvedRows, source: ResolvedRows, same_content: SameContent
) -> PlanChange:
    was, is_now = _place(old), _place(source)
    others = [name for name in was if was[name] != is_now[name]]
    name = others[0]
    change = PlanChange.of(
        f"{key}.{name}", was[name], is_now[name], rule_key=f"{_TASKSETS}eval_tasksets"
    )
    if others == ["path"] and old.path and source.path and same_content(old.path, source.path):
        return replace(change, why=SAME_FILES)
    return change.refused(
        f"the run has stored its rows under the name `{source.name}`",
        f"give the new rows another name too: `{key}.name`",
    )


def _place(source: ResolvedRows) -> dict[str, JsonValue]:
    return {name: getattr(source, name) for name in PLACE_KEYS if name != "name"}


def _sources(plan: StagePlan) -> Iterator[tuple[str, ResolvedRows]]:
    """Yields the key and the plan of each source of rows of a stage."""
    written = (place for place, _ in plan.config.buffer.explorer_input.written())
    for place, taskset in zip(written, plan.tasksets, strict=False):
        yield f"{_TASKSETS}{place}", taskset
    for index, taskset in enumerate(plan.eval_tasksets):
        yield f"{_TASKSETS}eval_tasksets[{index}]", taskset
    if not plan.has_rollouts and plan.stored_batches is None:
        yield _ROWS, plan.experience_buffer
    if (experts := plan.expert_buffer) is not None:
        yield f"buffer.trainer_input.auxiliary_buffers.{experts.name}", experts


def _names_of(value: JsonValue) -> JsonValue:
    """Returns the names of the sections of a list, which tell more than their beginnings."""
    if not isinstance(value, list) or not value:
        return value
    own = [item.get("name") for item in value if isinstance(item, dict)]
    return ", ".join(map(str, own)) if len(own) == len(value) and all(own) else value


def differing_values(
    old: JsonValue, new: JsonValue, at: str = ""
) -> dict[str, tuple[JsonValue, JsonValue]]:
    """Returns the keys at which two JSON values differ, with both values.

    Lists of the same length are compared item by item where these have keys.
    """
    pairs: Iterable[tuple[str, JsonValue, JsonValue]]
    if isinstance(old, dict) and isinstance(new, dict):
        both = dict.fromkeys((*old, *new))
        pairs = ((f"{at}.{name}".lstrip("."), old.get(name), new.get(name)) for name in both)
    elif isinstance(old, list) and isinstance(new, list) and _are_alike(old, new):
        items = enumerate(zip(old, new, strict=True))
        pairs = ((f"{at}[{index}]", was, is_now) for index, (was, is_now) in items)
    else:
        return {} if old == new else {at: (old, new)}
    return {
        key: values
        for at_key, was, is_now in pairs
        for key, values in differing_values(was, is_now, at_key).items()
    }


def _are_alike(old: list[JsonValue], new: list[JsonValue]) -> bool:
    sections = all(isinstance(item, dict) for item in (*old, *new))
    return bool(old) and len(old) == len(new) and sections
