"""Users' rewards and workflows in processes that can be killed; the models stay here."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from services.explorer.rollout.user_process_pool import UserCall, UserProcessPool
from services.explorer.rollout.user_processes import UserProcess
from trinity.errors import UserError
from trinity.rewards.reward import RewardSource
from trinity.rewards.score import BadReward
from trinity.types import Experience, JsonObject
from trinity.user_code.values import (
    PartRef,
    UserCodeFailed,
    encode_known,
    experience_from_text,
    experience_to_text,
    is_of_user,
)
from trinity.workflows.generation import GenerationDelta
from trinity.workflows.model import ModelWrapper, OnIndexedDelta
from trinity.workflows.task import Task, task_to_json

USERS_PATTERN = "pattern"
"""An argument of built-in rewards with which a user's regular expression runs."""
Message = dict[str, Any]


def needs_process(source: RewardSource, args: JsonObject) -> bool:
    """Returns true if a reward runs a user's code or regular expression, which may never end."""
    return USERS_PATTERN in args or is_of_user(source)


@dataclass(slots=True, kw_only=True)
class IsolatedReward:
    """A reward of one attempt; each call constructs and runs it in a separate process.

    reward = IsolatedReward(pool=pool, source=score, args={}, name="my_rewards.score")
    numbers = await reward({"response": "4"})
    """

    pool: UserProcessPool
    source: RewardSource
    args: JsonObject
    name: str
    open_calls: list[UserCall] = field(default_factory=list)
    """Calls without an answer, those among them that were given up."""

    @property
    def stuck_at(self) -> str:
        """The place of the reward, or where it was given up; empty once it has answered."""
        last = next(reversed(self.open_calls), None)
        return "" if last is None else f"the reward {self.name} {last.place}"

    @property
    def reference(self) -> Message:
        """The reward, as its process finds it."""
        return {"part": PartRef.of(self.name, self.source).to_json(), "args": self.args}

    async def __call__(self, values: Mapping[str, object]) -> dict[str, float]:
        """Returns the reward's numbers.

        Raises: BadReward, UserError, UserCodeFailed, WorkerFailed.
        """
        request = {
            "kind": "reward",
            **self.reference,
            "values": encode_known(values, self.name),
        }
        call = UserCall(request)
        self.open_calls.append(call)
        try:
            answer = await self.pool.answer(call)
        except Exception:
            self.open_calls.remove(call)
            raise
        self.open_calls.remove(call)
        raise_failure(answer)
        numbers: dict[str, float] = answer["numbers"]
        return numbers

    async def check(self) -> None:
        """Constructs the reward once.

        Raises: UserError when it cannot be constructed.
        """
        answer = await self.pool.load(self.reference)
        if failure := answer.get("failure"):
            if failure["kind"] == UserError.__name__:
                raise UserError(failure["text"])
            raise UserError(
                f"the reward {self.name} cannot be constructed: "
                f"{failure['sentence']}{failure['place']}"
            )


def raise_failure(answer: Message) -> None:
    """Raises the failure that a process answered with, if it did."""
    if failure := answer.get("failure"):
        known = {BadReward.__name__: BadReward, UserError.__name__: UserError}
        if (kind := known.get(failure["kind"])) is not None:
            raise kind(failure["text"])
        raise UserCodeFailed.from_json(failure)


def workflow_request(workflow: PartRef[Any], task: Task, runs: Sequence[int]) -> Message:
    """Returns the request to run a workflow; the reward and the models are added to it."""
    return {
        "kind": "workflow",
        "workflow": workflow.to_json(),
        "runs": list(runs),
        "task": task_to_json(task),
    }


@dataclass(slots=True, kw_only=True)
class IsolatedSpec:
    """A workflow to be run in a process, for one run or several of the same task."""

    pool: UserProcessPool
    name: str
    models: Sequence[ModelWrapper]
    """The models to close when it is over, the policy first."""
    request: Message
    stuck_at: str = ""
    """Where the workflow was when it was given up."""
    called_reward: bool | None = None

    async def run_in_process(self, on_begin: Callable[[], None]) -> dict[int, list[Experience]]:
        """Returns the experiences by run; `on_begin` is called when a process begins with it.

        Raises: UserError, UserCodeFailed, WorkerFailed, ValueError for impossible experiences.
        """
        async with self.pool.lease() as process:
            part = {"workflow": self.request["workflow"]}
            raise_failure(await self.pool.load_into(process, part))
            on_begin()
            try:
                answer = await self._run(process)
            except asyncio.CancelledError:
                self.stuck_at = f"{self.name} ran{await process.place()}"
                raise
        raise_failure(answer)
        made, self.called_reward = answer["made"].items(), answer["called_reward"]
        return {int(run): list(map(experience_from_text, texts)) for run, texts in made}

    async def _run(self, process: UserProcess) -> Message:
        process.write({**self.request, "models": [_facts_of(model) for model in self.models]})
        calls = ModelCalls(self.models, process.write)
        open_calls: set[asyncio.Task[None]] = set()
        try:
            while "call" in (message := await process.read()):
                task = asyncio.create_task(calls.answer(message))
                open_calls.add(task)
                task.add_done_callback(open_calls.discard)
            return message
        finally:
            for task in open_calls:
                task.cancel()
            if open_calls:
                await asyncio.wait(open_calls)


class ModelCalls:
    """Answers the calls of a workflow in a process: by the models here, in the order they came."""

    def __init__(
        self, models: Sequence[ModelWrapper], write: Callable[[Mapping[str, object]], None]
    ) -> None:
        self._models = models
        self._write = write
        self._sent: dict[int, tuple[int, Experience]] = {}
        """Answers by their identity, with the keys by which the process knows them."""

    async def answer(self, call: Message) -> None:
        """Answers a call; an error is its answer, too."""
        model, number = self._models[call["model"]], call["call"]
        try:
            value = await self._value(model, call)
            self._write({"reply": number, "value": value})
        except asyncio.CancelledError:
            self._write({"reply": number, "is_over": True})
        except Exception as error:  # the workflow decides what an error of its call means
            self._write({"reply": number, "raised": type(error).__name__, "text": str(error)})

    async def _value(self, model: ModelWrapper, call: Message) -> object:
        match call["function"]:
            case "chat":
                listen, tools = self._listener(call), call["tools"]
                made = await model.chat_async(
                    call["messages"], n=call["n"], tools=tools, on_delta=listen, **call["sampling"]
                )
                return self._experiences(made)
            case "generate":
                listen = self._listener(call)
                made = await model.generate_async(
                    call["prompts"], n=call["n"], on_delta=listen, **call["sampling"]
                )
                return self._experiences(made)
            case "score":
                scores = await model.score_all_async(
                    call["sequences"], num_likeliest=call["num_likeliest"]
                )
                return [asdict(each) for each in scores]
            case "history":
                return self._experiences(model.extract_experience_from_history(call["clear"]))
            case "keep_history":
                model.keep_history()
                return None
        return _encoded(model, call)

    def _listener(self, call: Message) -> OnIndexedDelta | None:
        return partial(self._send_delta, call["call"]) if call["streams"] else None

    def _send_delta(self, number: int, index: int, delta: GenerationDelta) -> None:
        self._write({"delta": number, "index": index, "value": asdict(delta)})

    def _experiences(self, made: Sequence[Experience]) -> list[Message]:
        return [self._experience(experience) for experience in made]

    def _experience(self, experience: Experience) -> Message:
        """Returns an answer whole, or by its key alone when the process has it."""
        if (known := self._sent.get(id(experience))) is not None:
            return {"key": known[0]}
        key = len(self._sent)
        self._sent[id(experience)] = key, experience
        return {"key": key, "experience": experience_to_text(experience)}


def _encoded(model: ModelWrapper, call: Message) -> object:
    """Encodes or decodes with the model's tokenizer, as a process requested."""
    tokenizer = model.tokenizer
    match call["function"]:
        case "encodes_to":
            tools = bytes.fromhex(call["tools_sha256"])
            return model.encodes_to(call["messages"], call["prompt"], tools)
        case "encode_chat":
            return asdict(tokenizer.encode_chat(call["messages"], call["tools"]))
        case "encode":
            return asdict(tokenizer.encode(call["text"]))
        case "decode":
            return tokenizer.decode(call["tokens"])
    raise ValueError(f"there is no call {call['function']!r}")


def _facts_of(model: ModelWrapper) -> Message:
    """Returns the model's properties for a process, as JSON."""
    return {
        "limits": asdict(model.limits),
        "sampling": asdict(model.sampling),
        "weights": list(model.weights),
        "name": model.name,
        "model_path": model.model_config.model_path,
        "template_sha256": model.tokenizer.template_sha256.hex(),
        "api": asdict(model.api_access) if model.has_api else None,
    }
