"""Users' rewards and workflows in processes that can be killed; the models stay here."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from services.explorer.rollout.user_process_pool import UserCall, UserProcessPool
from services.explorer.rollout.user_processes import UserProcess
from trinity.errors import UserError
from trinity.rewards.reward import RewardSource
from trinity.rewards.score import BadReward
from trinity.runtime.process.calls import CallServer, Message, OnDelta
from trinity.types import Experience, JsonObject
from trinity.user_code.values import (
    Failure,
    PartRef,
    UserCodeFailed,
    encode_known,
    experience_from_text,
    experience_to_text,
    is_of_user,
)
from trinity.workflows.generation import ChatTokenizer, GenerationDelta, RatedChat
from trinity.workflows.model import ModelWrapper

USERS_PATTERN = "pattern"
"""An argument of built-in rewards with which a user's regular expression runs."""


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
        raise UserCodeFailed(Failure(**failure))


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
        calls = CallServer(ModelCalls(self.models).value, process.write)
        try:
            while "call" in (message := await process.read()):
                calls.accept(message)
            return message
        finally:
            await calls.close()


class ModelCalls:
    """The values of a process's calls of the models here."""

    def __init__(self, models: Sequence[ModelWrapper]) -> None:
        self._models = models
        self._sent: dict[int, tuple[int, Experience]] = {}
        """Answers by their identity, with their keys."""

    async def value(self, call: Message, send: OnDelta) -> object:
        """Returns the value of a call; `send` gets the parts of one that streams."""
        model = self._models[call["model"]]
        on_delta = partial(_send_delta, send) if call["streams"] else None
        match call["function"]:
            case "chat":
                made = await model.chat_async(
                    call["messages"],
                    n=call["n"],
                    tools=call["tools"],
                    on_delta=on_delta,
                    **call["sampling"],
                )
                return self._experiences(made)
            case "generate":
                made = await model.generate_async(
                    call["prompts"], n=call["n"], on_delta=on_delta, **call["sampling"]
                )
                return self._experiences(made)
            case "score":
                return asdict(
                    await model.score_shown(call["tokens"], call["likeliest"], call["images"])
                )
            case "rate":
                return await model.rate_chat(RatedChat(**call["chat"]))
            case "history":
                made = model.extract_experience_from_history(call["clear"])
                return self._experiences(made, call["known"])
            case "keep_history":
                model.keep_history()
                return None
            case "encodes_to":
                tools = bytes.fromhex(call["tools_sha256"])
                return model.encodes_to(call["messages"], call["prompt"], tools)
            case "encode_chat":
                call = {**call, "messages": list(await model.load_images(call["messages"]))}
        return tokenizer_value(model.tokenizer, call)

    def _experiences(
        self, made: Sequence[Experience], known: Collection[int] = ()
    ) -> list[Message]:
        """Returns answers whole, or by the key alone when the process has them."""
        return [self._experience(experience, known) for experience in made]

    def _experience(self, experience: Experience, known: Collection[int]) -> Message:
        key, _ = self._sent.setdefault(id(experience), (len(self._sent), experience))
        if key in known:
            return {"key": key}
        return {"key": key, "experience": experience_to_text(experience)}


def _send_delta(send: OnDelta, index: int, delta: GenerationDelta) -> None:
    send({"index": index, "value": asdict(delta)})


def tokenizer_value(tokenizer: ChatTokenizer, call: Message) -> object:
    """Returns the value of another process's call of a tokenizer."""
    match call["function"]:
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
        "scores": model.scores,
        "model_path": model.model_config.model_path,
        "template_sha256": model.tokenizer.template_sha256.hex(),
        "api": asdict(model.api_access) if model.has_api else None,
    }
