"""Constructs the workflow, the reward and the models of an attempt."""

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from services.explorer.engine.images import ChatImages
from services.explorer.engines import LoadedModel
from services.explorer.media import MediaStore
from services.explorer.openai_api.run_turns import StageTurns
from services.explorer.openai_api.session import Session
from services.explorer.rollout.isolated_workflows import (
    IsolatedReward,
    IsolatedSpec,
    needs_process,
)
from services.explorer.rollout.part_use import PartUse
from services.explorer.rollout.user_process_pool import UserProcessPool
from services.explorer.rollout.workflow_execution import (
    HostedSpec,
    LoopSpec,
    RewardSpec,
    WorkflowSpec,
)
from services.explorer.types import Assignment, Attempt, AttemptApi, WeightsId
from trinity.config.plan.parts import AuxiliaryModel, ResolvedSampling, ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.data.images import ref_of
from trinity.errors import UserError
from trinity.plugins import REWARDS, WORKFLOWS
from trinity.runtime.process.calls import Message
from trinity.types import JsonObject, SamplingParams
from trinity.user_code.columns import optional_column, row_images, row_reward
from trinity.user_code.values import PartRef, is_of_user
from trinity.workflows.experience_builder import RatioWarnings
from trinity.workflows.generation import ChatTokenizer, Generator, ModelLimits
from trinity.workflows.hosting import (
    HostedRuns,
    IdleWorkflows,
    TaskInputs,
    preload_tensors,
)
from trinity.workflows.model import ModelWrapper
from trinity.workflows.model_access import ApiAccess
from trinity.workflows.task import GenerationConfig, Task, task_to_json
from trinity.workflows.workflow import Workflow

SEED_BITS = 63
"""Limits of a model that others serve, which refuses longer requests."""


def as_workflow_class(name: str, kind: object) -> type[Workflow]:
    """Returns `kind` as a workflow class; raises UserError if it is not one."""
    if not (isinstance(kind, type) and issubclass(kind, Workflow)):
        raise UserError(f"the workflow {name!r} is not a subclass of trinity's Workflow")
    return kind


def needs_isolation(kind: type[Workflow], reward: RewardSpec | None) -> bool:
    """Returns true for a workflow that may block and runs a user's code, its reward's included."""
    has_users_reward = reward is not None and reward.isolated is not None
    return not kind.is_on_loop() and (has_users_reward or is_of_user(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedInputs:
    """The inputs to a run's seeds; neither the attempt nor anything random is among them."""

    experiment_seed: int
    stage: str
    kind: str
    taskset: str
    explore_step: int
    position: int
    run: int
    model: str = ""
    """The model within a run; empty for the policy."""

    def seed_of_call(self, call: int) -> int:
        """Returns a 63-bit seed for the run's call number `call`, counted from 0."""
        return self._seed_of(call)

    def seed_of_turn(self, parent: bytes, prompt_sha256: bytes, ordinal: int) -> int:
        """Returns a 63-bit seed for a call over the run's address, by its place in the session."""
        return self._seed_of(f"{parent.hex()}/{prompt_sha256.hex()}/{ordinal}")

    def _seed_of(self, call: int | str) -> int:
        return seed_from(
            self.experiment_seed,
            self.stage,
            self.kind,
            self.taskset,
            self.explore_step,
            self.position,
            self.run,
            call,
            *([self.model] if self.model else []),
        )


def seed_from(*parts: object) -> int:
    """Returns a 63-bit seed that follows from these parts."""
    text = "\0".join(map(str, parts)).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)


class WorkflowFactory:
    """Everything that a stage's workflows are made from.

    Its constructor makes each reward once as a check, which takes as long as users' constructors
    do, and raises UserError when the plan names a workflow or reward that does not exist. With
    `processes` users' rewards run there, and `load_isolated_parts` makes them.
    """

    def __init__(
        self,
        *,
        plan: StagePlan,
        seed: int,
        generator: Generator,
        tokenizer: ChatTokenizer,
        api: AttemptApi | None = None,
        auxiliary: Sequence[LoadedModel] = (),
        processes: UserProcessPool | None = None,
        turns: StageTurns | None = None,
        media: MediaStore | None = None,
    ) -> None:
        self._plan = plan
        self._media = media
        self._images = self._images_of(tokenizer)
        self._turns = turns
        self.part_use = PartUse(plan)
        self._processes = processes
        self._seed = seed
        self._generator = generator
        self._tokenizer = tokenizer
        self._api = api
        self._ratio_warnings = RatioWarnings()
        self._auxiliary = list(zip(plan.auxiliary_models, auxiliary, strict=True))
        self._idle = IdleWorkflows()
        self._tasksets = {
            taskset.name: taskset for taskset in (*plan.tasksets, *plan.eval_tasksets)
        }
        for taskset in self._tasksets.values():
            workflow = as_workflow_class(taskset.workflow, WORKFLOWS.get(taskset.workflow))
            if processes is None and not workflow.is_on_loop():
                preload_tensors(workflow)
            if (reward := self._reward(taskset, {})) is not None and reward.isolated is None:
                reward.create_reward()

    async def load_isolated_parts(self) -> None:
        """Makes each reward that runs in a process once, and imports each such workflow.

        This warms the first process, and later ones load the same as they start. A workflow that
        cannot be imported says so when it is run.

        Raises: UserError when a reward cannot be made.
        """
        for taskset in self._tasksets.values():
            reward = self._reward(taskset, {})
            if reward is not None and reward.isolated is not None:
                await reward.isolated.check()
            kind = as_workflow_class(taskset.workflow, WORKFLOWS.get(taskset.workflow))
            if self._processes is not None and needs_isolation(kind, reward):
                part = PartRef.of(taskset.workflow, kind).to_json()
                await self._processes.load({"workflow": part})

    def runs_together(self, assignment: Assignment) -> bool:
        """True if one call of the task's workflow makes all runs of an assignment.

        A name that is not known makes them one by one, and is reported by each.
        """
        taskset = self._tasksets.get(assignment.taskset)
        if taskset is None:
            return False
        name = _name_from_row(assignment.new_task(), taskset.format.workflow_key)
        try:
            kind = as_workflow_class("", WORKFLOWS.get(name or taskset.workflow))
        except UserError:
            return False
        return kind.can_repeat and not kind.is_on_loop()

    def workflow_spec(
        self,
        attempts: Sequence[Attempt],
        model: ModelWrapper,
        auxiliary_models: Sequence[ModelWrapper] = (),
        images: Mapping[bytes, bytes] = MappingProxyType({}),
    ) -> WorkflowSpec | IsolatedSpec:
        """Returns the workflow to construct for attempts at runs of one assignment.

        The models were made for the first of them. Users' workflows get the row's images.
        """
        assignment = attempts[0].assignment
        taskset = self._tasksets[assignment.taskset]
        row = assignment.new_task()
        name = _name_from_row(row, taskset.format.workflow_key) or taskset.workflow
        kind = as_workflow_class(name, WORKFLOWS.get(name))
        task = _task(taskset, assignment, row)
        reward = self._reward(taskset, row)
        if self._processes is not None and needs_isolation(kind, reward):
            return IsolatedSpec(
                pool=self._processes,
                name=kind.__name__,
                models=(model, *auxiliary_models),
                request=self._request(kind, name, task, reward, attempts)
                | {"images": {own.hex(): b64encode(images[own]).decode() for own in images}},
            )
        if is_of_user(kind):
            task.show_images(images)
        if kind.is_on_loop():
            return LoopSpec(
                workflow_class=kind,
                task=task,
                reward=reward,
                model=model,
                auxiliary_models=auxiliary_models,
                run=attempts[0].run,
            )
        inputs = TaskInputs(
            workflow=kind,
            task=task,
            reward=reward.named(auxiliary_models) if reward is not None else None,
            num_runs=len(attempts),
            needs_reward=self._plan.algorithm.advantage_fn != "none",
        )
        return HostedSpec(hosted=self._hosted_runs(inputs, attempts, model, auxiliary_models))

    async def load_images(self, assignment: Assignment) -> dict[bytes, bytes]:
        """Returns the contents of the images of a task by their hashes."""
        form = self._tasksets[assignment.taskset].format
        if form.image_key is None or self._media is None:
            return {}
        parts = row_images(assignment.new_task(), form.image_key) or []
        return await self._media.read([ref.sha256 for ref in map(ref_of, parts) if ref])

    def _request(
        self,
        kind: type[Workflow],
        name: str,
        task: Task,
        reward: RewardSpec | None,
        attempts: Sequence[Attempt],
    ) -> Message:
        """Returns the request to run a workflow in a process, without its models."""
        return {
            "kind": "workflow",
            "workflow": PartRef.of(name, kind).to_json(),
            "runs": [attempt.run for attempt in attempts],
            "task": task_to_json(task),
            "reward": None if reward is None else reward.to_json(),
            "needs_reward": self._plan.algorithm.advantage_fn != "none",
        }

    def _hosted_runs(
        self,
        inputs: TaskInputs,
        attempts: Sequence[Attempt],
        model: ModelWrapper,
        auxiliary_models: Sequence[ModelWrapper],
    ) -> HostedRuns:
        return HostedRuns(
            inputs=inputs,
            model=model,
            auxiliary_models=auxiliary_models,
            runs=tuple(attempt.run for attempt in attempts),
            idle=self._idle,
        )

    def create_model(self, attempt: Attempt, weights: WeightsId) -> ModelWrapper:
        """Makes the policy's model for one attempt, to be closed when the attempt is over."""
        plan = self._plan
        taskset = self._tasksets[attempt.assignment.taskset]
        sampling = taskset.sampling
        model = ModelWrapper(
            generator=self._generator,
            tokenizer=self._tokenizer,
            limits=_limits(
                plan,
                sampling,
                truncates_prompts=plan.config.model.enable_prompt_truncation,
                is_external=plan.external_model is not None,
            ),
            sampling=_parameters(sampling),
            weights=(weights.version, weights.incarnation),
            seed_of_call=self._seeds(attempt).seed_of_call,
            keeps_history=plan.config.explorer.rollout_model.enable_history,
            ratio_warnings=None if taskset.is_eval else self._ratio_warnings,
            model_path=plan.model_path,
            images=self._images,
        )
        model.media = self._media
        if taskset.is_of_clients and self._turns is not None:
            model.committed_answers = partial(self._turns.committed_answers, attempt)
        if self._api is not None:
            model.enable_api(self._open_session(self._api, attempt, model))
        return model

    def _images_of(self, tokenizer: ChatTokenizer) -> ChatImages | None:
        """Returns the images of chats with a model that reads them."""
        return None if self._media is None else ChatImages.of(tokenizer, self._media)

    def _open_session(self, api: AttemptApi, attempt: Attempt, model: ModelWrapper) -> ApiAccess:
        store = None if self._turns is None else self._turns.store_of(attempt)
        if store is None:
            return api.register_attempt(model)
        seeds = None if attempt.assignment.numbers_calls else self._seeds(attempt).seed_of_turn
        session = Session(session_id=store.session_id, store=store, seed_of_turn=seeds)
        return api.register_attempt(model, session, secret=store.secret)

    def create_auxiliary_models(self, attempt: Attempt) -> list[ModelWrapper]:
        """Makes the auxiliary models for one attempt, to be closed with it."""
        return [
            self._create_auxiliary_model(f"auxiliary {position}", attempt, plan, running)
            for position, (plan, running) in enumerate(self._auxiliary)
        ]

    def _create_auxiliary_model(
        self, place: str, attempt: Attempt, plan: AuxiliaryModel, running: LoadedModel
    ) -> ModelWrapper:
        """Makes one; its seeds follow from its position, so a new name changes no answer."""
        model = ModelWrapper(
            generator=running.engine,
            tokenizer=running.tokenizer,
            limits=_limits(
                plan,
                plan.sampling,
                truncates_prompts=plan.truncates_prompts,
                is_external=plan.external is not None,
            ),
            sampling=_parameters(plan.sampling),
            weights=(0, 0),
            seed_of_call=replace(self._seeds(attempt), model=place).seed_of_call,
            auxiliary_name=plan.name,
            model_path=plan.model_path,
            images=self._images_of(running.tokenizer),
        )
        model.scores = plan.role == "score"
        if running.api is not None:
            model.enable_api(running.api.register_attempt(model))
        return model

    def _reward(self, taskset: ResolvedTaskset, row: JsonObject) -> RewardSpec | None:
        own = _name_from_row(row, taskset.format.reward_fn_key)
        name = row_reward(own) if own else taskset.reward
        if name is None:
            return None
        source, args = REWARDS.get(name), taskset.reward_args
        isolated = None
        if self._processes is not None and needs_process(source, args):
            isolated = IsolatedReward(pool=self._processes, source=source, args=args, name=name)
        return RewardSpec(
            source=source,
            args=args,
            name=name,
            on_failure=self._plan.config.explorer.on_bad_reward,
            isolated=isolated,
        )

    def _seeds(self, attempt: Attempt) -> SeedInputs:
        assignment = attempt.assignment
        return SeedInputs(
            experiment_seed=self._seed,
            stage=self._plan.name,
            kind=assignment.kind,
            taskset=assignment.taskset,
            explore_step=assignment.explore_step,
            position=assignment.position,
            run=attempt.run,
        )


def _task(taskset: ResolvedTaskset, assignment: Assignment, row: JsonObject) -> Task:
    sampling = taskset.sampling
    task = Task(
        repeat_times=taskset.repeat_times,
        format_args=taskset.format.model_copy(),
        rollout_args=GenerationConfig(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            logprobs=sampling.logprobs,
            max_tokens=sampling.max_tokens,
        ),
        workflow_args=dict(taskset.workflow_args),
        is_eval=taskset.is_eval,
        raw_task=row,
        batch_id=assignment.explore_step,
        task_id=assignment.task_index,
        index={"taskset": taskset.name, "index": assignment.task_index},
        source=taskset.path or "",
    )
    task.format_args.system_prompt = task.system_prompt
    return task


def _limits(
    plan: StagePlan | AuxiliaryModel,
    sampling: ResolvedSampling,
    *,
    truncates_prompts: bool,
    is_external: bool,
) -> ModelLimits:
    if is_external:
        return ModelLimits.unknown()
    return ModelLimits(
        max_model_len=plan.max_model_len,
        max_prompt_tokens=plan.max_prompt_tokens,
        min_tokens=sampling.min_tokens,
        truncate_prompts=truncates_prompts,
    )


def _parameters(sampling: ResolvedSampling) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        repetition_penalty=sampling.repetition_penalty,
        logprobs=sampling.logprobs,
    )


def _name_from_row(row: JsonObject, key: str) -> str:
    return str(optional_column(row, key) or "") if key else ""
