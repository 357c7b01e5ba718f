"""A workflow in a process of users' code, and the model as it calls it: asked of the explorer."""

import asyncio
import base64
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, cast

from services.explorer.user_process.calls import CallChannel, Json
from trinity.data.images import with_data_urls
from trinity.plugins import REWARDS, WORKFLOWS
from trinity.runtime.process.calls import OnDelta, OpenCalls, Reply
from trinity.types import Experience, JsonObject
from trinity.user_code.values import PartRef, experience_from_text, experience_to_text
from trinity.workflows.generation import (
    AttemptCalls,
    AttemptOver,
    GenerationDelta,
    ModelLimits,
    Prompt,
    RatedChat,
    Scores,
    sampling_from_json,
)
from trinity.workflows.hosting import (
    HostedRuns,
    IdleWorkflows,
    NamedReward,
    TaskInputs,
    preload_tensors,
)
from trinity.workflows.messages import Message
from trinity.workflows.model import CallOptions, ModelWrapper, OnIndexedDelta
from trinity.workflows.model_access import ApiAccess
from trinity.workflows.task import task_from_json
from trinity.workflows.workflow import Workflow

_IDLE = IdleWorkflows()
"""Workflows of this process that serve one task after another."""


@cache
def _calling_loop() -> asyncio.AbstractEventLoop:
    """The loop of calls that are not made on a loop of the workflow's own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="model-calls", daemon=True).start()
    return loop


class RemoteTokenizer:
    """The model's tokenizer, asked of the explorer."""

    def __init__(self, call: Callable[..., Reply], template_sha256: bytes) -> None:
        self._call = call
        self._template_sha256 = template_sha256

    @property
    def template_sha256(self) -> bytes:
        """Hash of the chat template."""
        return self._template_sha256

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Encodes a chat."""
        plain = with_data_urls(messages)
        made = self._call("encode_chat", messages=plain, tools=list(tools)).result()
        return Prompt.from_json(made)

    def encode(self, text: str) -> Prompt:
        """Encodes a text."""
        return Prompt.from_json(self._call("encode", text=text).result())

    def decode(self, token_ids: list[int]) -> str:
        """Decodes tokens."""
        return str(self._call("decode", tokens=token_ids).result())


class RemoteModel(ModelWrapper):
    """A model of the explorer's for the run of this process."""

    def __init__(self, explorer: OpenCalls, place: int, facts: Json) -> None:
        self._explorer = explorer
        self._place = place
        self._limits = ModelLimits(**facts["limits"])
        self._sampling = sampling_from_json(facts["sampling"])
        self._version, self._incarnation = facts["weights"]
        self._name, self._model_path = facts["name"], facts["model_path"]
        self.scores = facts["scores"]
        self._state = {}
        self._tokenizer = RemoteTokenizer(
            self._ask_explorer, bytes.fromhex(facts["template_sha256"])
        )
        self._calls = AttemptCalls(_calling_loop())
        self._known: dict[int, Experience] = {}
        self._turns = {}
        if facts["api"] is not None:
            self.enable_api(ApiAccess(**facts["api"]))

    async def answer_chat(
        self, messages: Sequence[Any], tools: Sequence[JsonObject], options: CallOptions
    ) -> list[Experience]:
        """Answers a chat."""
        plain = with_data_urls(messages)
        return await self._ask("chat", options, messages=plain, tools=list(tools))

    async def answer_prompts(
        self, prompts: Sequence[str | Sequence[int]], options: CallOptions
    ) -> list[Experience]:
        """Continues prompts."""
        plain = [p if isinstance(p, str) else [int(token) for token in p] for p in prompts]
        return await self._ask("generate", options, prompts=plain)

    def encodes_to(
        self, messages: Sequence[Message], prompt: list[int], tools_sha256: bytes
    ) -> bool:
        """Returns true if a chat, with tools of an earlier call, is this prompt."""
        asked = self._ask_explorer(
            "encodes_to", messages=list(messages), prompt=prompt, tools_sha256=tools_sha256.hex()
        )
        return bool(asked.result())

    async def score_shown(
        self, tokens: Sequence[int], num_likeliest: int = 0, images: Sequence[JsonObject] = ()
    ) -> Scores:
        """Scores tokens, among which are those of the images."""
        plain, shown = [int(token) for token in tokens], list(images)
        found = self._ask_explorer("score", tokens=plain, likeliest=num_likeliest, images=shown)
        return Scores.from_json(await asyncio.wrap_future(found))

    async def rate_chat(self, chat: RatedChat) -> list[list[float]]:
        """Returns the logits of all labels, of each step or of the whole chat."""
        found = self._ask_explorer("rate", chat=asdict(chat))
        return cast(list[list[float]], await asyncio.wrap_future(found))

    def keep_history(self) -> None:
        """Records answers from now on."""
        self._ask_explorer("keep_history").result()

    def extract_experience_from_history(self, clear_history: bool = True) -> list[Experience]:
        """Returns the answers to all calls of this run so far; those seen here are the same."""
        known = list(self._known)
        made = self._ask_explorer("history", clear=clear_history, known=known).result()
        return [self._answer(each) for each in made]

    def refuse_calls(self) -> None:
        """Ends the run: threads that it left behind get no more answers."""
        self._calls.refuse()

    @property
    def answers(self) -> list[Experience]:
        """All answers of this attempt that were seen here or are in the history."""
        self.extract_experience_from_history(clear_history=False)
        return list(self._known.values())

    async def _ask(self, function: str, options: CallOptions, **given: object) -> list[Experience]:
        asked = self._ask_explorer(
            function, options.on_delta, n=options.n, sampling=options.sampling, **given
        )
        return [self._answer(each) for each in await asyncio.wrap_future(asked)]

    def _answer(self, each: Json) -> Experience:
        """Returns an answer: the object that the workflow has of it, if it has one."""
        key = each["key"]
        if key not in self._known:
            answer = self._known[key] = experience_from_text(each["experience"])
            answer.origin = answer.copied()
        return self._known[key]

    def _ask_explorer(
        self, function: str, on_delta: OnIndexedDelta | None = None, **values: object
    ) -> Reply:
        self._calls.require_open()
        return self._explorer.call(function, _of_json(on_delta), model=self._place, **values)


def _of_json(on_delta: OnIndexedDelta | None) -> OnDelta | None:
    if on_delta is None:
        return None

    def heard(message: Json) -> None:
        on_delta(message["index"], GenerationDelta.from_json(message["value"]))

    return heard


def load_workflow(reference: Json) -> None:
    """Imports a workflow and its dependencies, before a run's time begins."""
    preload_tensors(_workflow(reference))


def run_workflow(channel: CallChannel, request: Json) -> JsonObject:
    """Makes the runs of a request; returns their experiences by run."""
    calls = channel.calls
    models = [RemoteModel(calls, place, facts) for place, facts in enumerate(request["models"])]
    hosted = _hosted(_workflow(request["workflow"]), models, request)
    reward = hosted.inputs.reward
    try:
        made = hosted.make()
    finally:
        for model in models:
            model.refuse_calls()
        calls.fail(AttemptOver())  # later lines about them would be taken for answers
    return {
        "made": {str(run): [experience_to_text(e) for e in made[run]] for run in made},
        "called_reward": None if reward is None else reward.was_called,
    }


def _workflow(reference: Json) -> Any:
    ref: PartRef[type[Workflow]] = PartRef(**reference)
    return ref.resolve(WORKFLOWS)


def _hosted(kind: type, models: Sequence[RemoteModel], request: Json) -> HostedRuns:
    task = task_from_json(request["task"])
    images = request["images"].items()
    task.show_images({bytes.fromhex(own): base64.b64decode(text) for own, text in images})
    inputs = TaskInputs(
        workflow=kind,
        task=task,
        reward=_named(request, models[1:]),
        num_runs=len(request["runs"]),
        needs_reward=request["needs_reward"],
    )
    return HostedRuns(
        inputs=inputs,
        model=models[0],
        auxiliary_models=models[1:],
        runs=tuple(request["runs"]),
        idle=_IDLE,
    )


def _named(request: Json, models: Sequence[RemoteModel]) -> NamedReward | None:
    reward = request["reward"]
    if reward is None:
        return None
    ref: PartRef[Any] = PartRef(**reward["part"])
    return NamedReward(
        source=ref.resolve(REWARDS),
        args=reward["args"],
        name=ref.name,
        on_failure=reward["on_failure"],
        models=models,
    )
