"""Runs a workflow that was written for Trinity-RFT, and takes over what it returns.

    made = HostedRuns(inputs, model, auxiliary, runs=(0, 1)).make()   # blocks: call it in a thread
    made[0], made[1]                                                  # experiences by run

What the engine answered stays the engine's; what the workflow built itself is marked.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trinity import types
from trinity.codec import check_sequence
from trinity.errors import UserError
from trinity.types import Alignment, Array, Pair, VersionSpan
from trinity.workflows.experience_builder import AUXILIARY_MODEL
from trinity.workflows.model import ModelWrapper as OurModel
from trinity.workflows.trinity_rft.experience import (
    OURS,
    Experience,
    further_samples,
    numbers_of,
    plain_json,
)
from trinity.workflows.trinity_rft.model import ModelWrapper, run_own_loop
from trinity.workflows.trinity_rft.task import Task, TaskInputs, create_task
from trinity.workflows.trinity_rft.workflow import Workflow

logger = logging.getLogger(__name__)
BUILT = "built_by_workflow"
"""Key in `info` of an experience that no answer of the engine is, and the metric of their share."""
MAX_IDLE = 64
"""Instances of a class that wait for a next task; upstream keeps one a runner."""


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """Names of the models in requests, the policy's first."""

    policy: str
    auxiliary: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """A workflow with the models that it was made over."""

    workflow: Workflow
    model: ModelWrapper
    auxiliary: Sequence[ModelWrapper]

    @property
    def is_reusable(self) -> bool:
        """True if it may serve another task: nothing of it belongs to an event loop that ended."""
        models = (self.model, *self.auxiliary)
        return (
            self.workflow.resettable
            and not self.workflow.asynchronous
            and all(model.is_reusable for model in models)
        )


class IdleWorkflows:
    """Workflows with `can_reset` that have ended a task and wait for the next one.

    Only those that ended well come back: a thread that was given up may still use its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[type, str, int], list[Hosted]] = {}

    def take(self, inputs: TaskInputs) -> Hosted | None:
        """Returns a workflow that no other thread has, if there is one for such a task.

        It has made as many runs before: `reset` often leaves the task's settings as they were.
        """
        with self._lock:
            waiting = self._idle.get(_kind_of(inputs))
            return waiting.pop() if waiting else None

    def give_back(self, hosted: Hosted, inputs: TaskInputs) -> None:
        """Keeps a workflow for the next task of its taskset."""
        with self._lock:
            waiting = self._idle.setdefault(_kind_of(inputs), [])
            if len(waiting) < MAX_IDLE:
                waiting.append(hosted)


def _kind_of(inputs: TaskInputs) -> tuple[type, str, int]:
    return inputs.workflow, inputs.task.taskset, inputs.num_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedRuns:
    """The runs of one task that one call of a workflow makes."""

    inputs: TaskInputs
    model: OurModel
    auxiliary_models: Sequence[OurModel]
    runs: tuple[int, ...]
    paths: ModelPaths
    idle: IdleWorkflows

    def make(self) -> dict[int, list[types.Experience]]:
        """Returns the experiences of each run; it blocks.

        Raises: UserError when they cannot be told apart by run, and the workflow's own errors.
        """
        hosted = self._hosted()
        workflow = hosted.workflow
        if type(workflow).can_repeat:
            workflow.set_repeat_times(len(self.runs), self.runs[0])
        made = run_own_loop(workflow.run_async) if workflow.asynchronous else workflow.run()
        name = type(workflow).__name__
        by_run = self._by_run(name, _checked(made, name), hosted.model)
        if hosted.is_reusable:
            self.idle.give_back(hosted, self.inputs)
        return by_run

    def _hosted(self) -> Hosted:
        """Returns a workflow with the task: one that is idle, or a new one."""
        task = create_task(self.inputs)
        found = self.idle.take(self.inputs)
        if found is None:
            return self._new(self.inputs.workflow, task)
        found.model.bind(self.model)
        for wrapper, model in zip(found.auxiliary, self.auxiliary_models, strict=True):
            wrapper.bind(model)
        found.workflow.task = task
        try:
            found.workflow.reset(task)
        except Exception:  # the edge of the user's code: a task that only `__init__` can begin
            logger.info("a workflow cannot be reset and is made again", exc_info=True)
            return self._new(self.inputs.workflow, create_task(self.inputs))
        return found

    def _new(self, kind: Any, task: Task) -> Hosted:
        auxiliary = [
            ModelWrapper(model, model_path=path)
            for model, path in zip(self.auxiliary_models, self.paths.auxiliary, strict=True)
        ]
        policy = ModelWrapper(self.model, model_path=self.paths.policy)
        workflow: Workflow = kind(task=task, model=policy, auxiliary_models=auxiliary)
        if "model" not in vars(workflow):  # its constructor leaves that of the base out
            Workflow.__init__(workflow, task=task, model=policy, auxiliary_models=auxiliary)
        return Hosted(workflow=workflow, model=policy, auxiliary=auxiliary)

    def _by_run(
        self, name: str, made: list[Experience], model: ModelWrapper
    ) -> dict[int, list[types.Experience]]:
        taken: dict[int, list[types.Experience]] = {run: [] for run in self.runs}
        if not self.inputs.task.is_eval:
            self._check_rewards(name, made)
        for experience, run in zip(made, self._places(name, made), strict=True):
            taken[run] += [_taken_over(sample, model) for sample in further_samples([experience])]
        return taken

    def _check_rewards(self, name: str, made: list[Experience]) -> None:
        for experience in made:
            if experience.reward is None and self.inputs.needs_reward:
                raise UserError(
                    f"{name} returned an experience without a reward: set `experience.reward`"
                )
            experience.reward = experience.reward or 0.0

    def _places(self, name: str, made: list[Experience]) -> list[int]:
        """Returns the run of each experience: as it says, else in their order."""
        runs, size = self.runs, len(self.runs)
        named = [int(_place(experience).run) for experience in made]
        if size == 1:
            return list(runs) * len(made)
        says_nothing = set(named) in ({0}, {runs[0]})
        is_absolute = all(runs[0] <= run < runs[0] + size for run in named)
        relative = [run - runs[0] if is_absolute else run for run in named]
        if not says_nothing and all(0 <= run < size for run in relative):
            return [runs[run] for run in relative]
        if says_nothing and (len(made) % size == 0 or len(made) < size):
            each = max(len(made) // size, 1)
            return [runs[i // each] for i in range(len(made))]
        raise UserError(
            f"{name} returned {len(made)} experiences for {size} runs with the numbers "
            f"{sorted(set(named))} in `eid.run`: set it to `run_id_base` plus the run's number"
        )


def _place(experience: Experience) -> Any:
    return experience.eid


def _checked(made: object, name: str) -> list[Experience]:
    """Returns the workflow's experiences; raises UserError for anything else."""
    if not isinstance(made, list | tuple) or not made:
        raise UserError(f"{name} returned no list of experiences, but {made!r:.60}")
    for experience in made:
        if not isinstance(experience, Experience):
            raise UserError(
                f"{name} returned {type(experience).__name__}, not an Experience of "
                "trinity.common.experience"
            )
        experience.check_fields()
    if len({str(_place(experience).task) for experience in made}) > 1:
        raise UserError(
            f"{name} returned experiences with several values of `eid.task`: all samples of a "
            "task are one group here, so leave `eid.task` as it is"
        )
    return list(made)


def _taken_over(experience: Experience, model: ModelWrapper) -> types.Experience:
    """Returns the sample as services take it: an answer of the engine, or one that was built."""
    experience.info, experience.metrics = (
        dict(experience.info or {}),
        dict(experience.metrics or {}),
    )
    _set_custom_fields(experience)
    answer = _answer_of(experience, model)
    if answer is None:
        _mark_as_built(experience, model)
    else:
        _take_from_engine(experience, answer)
    values = {name: getattr(experience, name) for name in OURS}
    values["reward"] = None if experience.reward is None else float(experience.reward)
    values["info"] = plain_json(experience.info)
    values["metrics"] = {BUILT: 0.0, **numbers_of(experience.metrics)}
    return types.Experience(**values)


def _set_custom_fields(experience: Experience) -> None:
    for own in experience.custom_fields:
        value = np.asarray(plain_json(experience.info[own.source_field]), dtype=np.float32)
        experience.arrays[own.destination_field] = Array(value, Alignment.SAMPLE)


def _answer_of(experience: Experience, model: ModelWrapper) -> types.Experience | None:
    """Returns what the engine said that an experience repeats; None if a workflow built it.

    One whose tokens or log-probabilities were changed afterwards is built, too.
    """
    body, origin = experience.body, experience.origin
    if isinstance(body, Pair):
        return None
    is_known = origin is not None and origin.version_spans
    known = [origin] if origin is not None and is_known else []
    known += [answer for answer, _ in model.answers]
    has_logprobs = not experience.lacks_logprobs
    found = (own for own in known if _repeats(body, own.sequence, with_logprobs=has_logprobs))
    return next(found, None)


OF_ENGINE = ("version_spans", "sampling", "chat_template_sha256", "tools_sha256")
"""Fields that the engine's answer decides."""


def _take_from_engine(experience: Experience, answer: types.Experience) -> None:
    """Gives an experience all that the engine said of it; a workflow may mask more of it."""
    body, own = experience.sequence, answer.sequence
    if experience.origin is not answer and experience.truncate_status is None:
        experience.finish_reason = answer.finish_reason
    for name in OF_ENGINE:
        setattr(experience, name, getattr(answer, name))
    if other := answer.info.get(AUXILIARY_MODEL):
        experience.info[AUXILIARY_MODEL] = other
    experience.body = replace(
        own,
        action_mask=body.action_mask & own.action_mask,
        prompt_text=body.prompt_text or own.prompt_text,
        response_text=body.response_text or own.response_text,
    )


def _repeats(built: types.Sequence, own: types.Sequence, *, with_logprobs: bool) -> bool:
    """True for the same tokens, with the same log-probabilities wherever both train them.

    One that trains more tokens than the engine chose repeats nothing, unless there are none.
    """
    is_same = (
        own.prompt_length == built.prompt_length
        and np.array_equal(own.tokens, built.tokens)
        and own.action_mask.shape == built.action_mask.shape
    )
    if not is_same or (own.action_mask.any() and (built.action_mask & ~own.action_mask).any()):
        return False
    trained_R = built.action_mask & own.action_mask
    given_R, known_R = built.rollout_logprobs, own.rollout_logprobs
    return not with_logprobs or (
        given_R.shape == known_R.shape
        and np.array_equal(given_R[trained_R], known_R[trained_R], equal_nan=True)
    )


def _mark_as_built(experience: Experience, model: ModelWrapper) -> None:
    """Marks an experience that the workflow built; the run's weights are its version.

    Log-probabilities that it lacks are the model's own, at temperature 1.

    Raises: UserError for lengths that do not fit, and for tokens that the model does not have.
    """
    experience.info[BUILT] = True
    experience.metrics[BUILT] = 1.0
    body = experience.body
    for side in (body.chosen, body.rejected) if isinstance(body, Pair) else (body,):
        check_sequence(side)
        _check_tokens(side, model.own)
    if isinstance(body, Pair):
        return
    _fill_in(experience, body, model.own)
    version, incarnation = model.own.weights
    experience.version_spans = (
        VersionSpan(start=0, end=body.response_length, version=version, incarnation=incarnation),
    )


def _check_tokens(sequence: types.Sequence, ours: OurModel) -> None:
    """Asks the engine, which refuses unknown tokens: a trainer would die of them."""
    length, limit = len(sequence.tokens), ours.limits.max_model_len
    if length > limit:
        raise UserError(
            f"a workflow built an experience of {length} tokens, `model.max_model_len` is {limit}: "
            "cut it"
        )
    if ours.limits.is_known:
        ends = [int(sequence.tokens.min()), int(sequence.tokens.max())]
        ours.wait_in_thread(ours.score_async(ends))


def _fill_in(experience: Experience, body: types.Sequence, ours: OurModel) -> None:
    tokens_L = body.tokens.tolist()
    if experience.lacks_logprobs:
        scores = ours.wait_in_thread(ours.score_async(tokens_L))
        experience.logprobs = scores.logprobs[body.prompt_length - 1 :]
    body.response_text = body.response_text or ours.text_of(tokens_L[body.prompt_length :])
    body.prompt_text = body.prompt_text or ours.text_of(tokens_L[: body.prompt_length])
