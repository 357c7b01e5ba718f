"""Rewards: each names the parts of a response's score, whose sum is the reward.

A class gives the sum of all parts, unless it says `sums_all = False`. For a function, and for such
a class, a part named `score` alone is the reward, as in veRL, and the other parts are metrics.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import ClassVar, Literal, Protocol, cast

from trinity.errors import UserError
from trinity.rewards.awaiting import complete
from trinity.rewards.score import REWARD_FAILED, SCORE, BadReward, as_parts
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.telemetry import metrics
from trinity.runtime.threads import DaemonThreads
from trinity.types import JsonObject, JsonValue
from trinity.user_code.values import text_of

logger = logging.getLogger(__name__)
_limited_log = RateLimitedLog(logger)

RewardParts = Mapping[str, float] | float
OnBadReward = Literal["fail", "zero"]
"""What becomes of an answer whose reward fails: of its attempt at a run, or of the answer alone."""
REWARD_POOL = DaemonThreads(name="reward", max_threads=32)
"""Many threads, for rewards that wait for something; those that compute do not gain from it."""
KNOWN = frozenset(
    {
        "response",
        "truth",
        "ground_truth",
        "prompt",
        "messages",
        "task",
        "response_length",
        "response_token",
        "finish_reason",
        "solution_str",
        "data_source",
        "extra_info",
    }
)
"""Parameters that a reward may name; the last three are veRL's, for functions written for it."""
TRUTHS = frozenset({"truth", "ground_truth", "ground_truths"})
"""Parameters that a row may lack."""
OF_VERL = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"})
"""All that veRL calls a function with, which may name some and take the rest by `**kwargs`."""
OF_VERLS_BATCHES: Mapping[str, str] = {
    "data_sources": "data_source",
    "solution_strs": "solution_str",
    "ground_truths": "ground_truth",
    "extra_infos": "extra_info",
}
"""The lists that veRL's reward manager `batch` calls a function with; here they have one value."""


MODELS = "auxiliary_models"
"""A parameter with a default, for rewards that run where the models are, in the explorer."""


class RewardFn:
    """Base of rewards; the arguments of `reward_fn_args` go to `__init__`.

        class ShortAnswer(RewardFn):
            def __init__(self, limit: int = 20) -> None:
                self._limit = limit

            def __call__(self, *, response: str) -> dict[str, float]:
                return {"short": float(len(response) <= self._limit)}

    By its name in a taskset, `__call__` receives only the parameters that it names. Available are
    `response`, `truth` (or `ground_truth`), `prompt`, `messages` (the whole chat), `task` (the
    whole row), `response_length` in tokens, `response_token` (the ids) and `finish_reason`. A truth
    without a default is required: a row without one is not scored. Arguments of veRL's reward
    functions are available, too: `solution_str` is the response, `data_source` and `extra_info` are
    columns of the row. `__call__` may be `async`: it is awaited.
    """

    in_thread: ClassVar[bool] = True
    """False for a reward that never waits and takes well under a millisecond."""
    sums_all: ClassVar[bool] = True
    """False where a part named `score` is the reward alone, and the other parts are metrics."""

    def __init__(self, /, **kwargs: object) -> None:
        """Accepts any arguments, for constructors of subclasses that pass them on."""

    __call__: Callable[..., RewardParts | Awaitable[RewardParts]]
    """Returns the named parts of a score; a plain number is one part, named after the reward."""


RewardSource = type[RewardFn] | Callable[..., RewardParts | Awaitable[RewardParts]]
ScoreElsewhere = Callable[[Mapping[str, object]], Awaitable[dict[str, float]]]
"""Calls the reward with the values that it names in another process."""


class ScoredTask(Protocol):
    """The parts of a task that a reward may take: its row, its prompt and its truth."""

    @property
    def raw_task(self) -> JsonObject: ...

    @property
    def question(self) -> str: ...

    @property
    def truth(self) -> JsonValue: ...

    def demand_truth(self) -> None: ...


class BoundReward:
    """A constructed reward: called with all known values, it passes on those that are named. The
    truth, the prompt and the row are those of its task, unless they are given.

        numbers = await reward.score(response="4", truth="4")   # where it can be killed, if it can
        numbers = reward(response="4", truth="4")               # here, and it may block

    `elsewhere` is how `score` calls a reward that runs in another process; then it is constructed
    here for direct calls alone.
    """

    def __init__(
        self,
        source: RewardSource,
        args: Mapping[str, JsonValue],
        name: str,
        *,
        on_failure: OnBadReward = "fail",
        elsewhere: ScoreElsewhere | None = None,
        models: Sequence[object] = (),
    ) -> None:
        self._source = source
        self._args = args
        self._name = name
        self._on_failure = on_failure
        self._elsewhere = elsewhere
        self._models = models
        """The auxiliary models, as workflows have them."""
        self._of_task: ScoredTask | None = None
        self.was_called = False
        """True once it was called, whatever it returned."""
        if elsewhere is None:
            self._function  # noqa: B018  # constructed now: its errors belong to the constructor
        self.in_thread = _in_thread(source)
        self._is_async = _is_async(source)
        self._sums_all = _sums_all(source)
        has_hash = isinstance(source, type) or source.__hash__ is not None
        hashable = cast(Hashable, source if has_hash else type(source))
        self._wanted, demanded = _parameters(hashable, name)
        self._takes_lists = self._wanted is not None and "solution_strs" in self._wanted
        self.needs_truth = not demanded.isdisjoint(TRUTHS)

    def for_task(self, task: ScoredTask) -> None:
        """Sets the task, for values that a call leaves out."""
        self._of_task = task

    @cached_property
    def _function(self) -> Callable[..., RewardParts | Awaitable[RewardParts]]:
        return _build(self._source, self._args, self._name)

    def __call__(self, /, **known: object) -> dict[str, float]:
        """Returns the parts of the score; an asynchronous reward is waited for.

        Raises: BadReward when the reward returns neither finite numbers by name nor a number.
        """
        try:
            return self._numbers(complete(self._function(**self._named(known))))
        except Exception as error:
            return self._failed(error)

    async def score(self, /, **known: object) -> dict[str, float]:
        """Returns the parts of the score without blocking: in another process, or in a thread.

        Raises: as a call.
        """
        values = self._named(known)
        try:
            if self._elsewhere is not None:
                return await self._elsewhere(values)
            call = partial(self._function, **values)
            in_thread = self.in_thread and not self._is_async
            parts = await REWARD_POOL.run_in_thread(call) if in_thread else call()
            return self._numbers(await parts if inspect.isawaitable(parts) else parts)
        except Exception as error:
            return self._failed(error)

    def parts_of(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Returns those of a reward's numbers whose sum is the reward."""
        if REWARD_FAILED in numbers:
            return {SCORE: 0.0}
        has_score = SCORE in numbers and not self._sums_all
        return {SCORE: numbers[SCORE]} if has_score else dict(numbers)

    def _named(self, known: Mapping[str, object]) -> dict[str, object]:
        """Returns the values that the reward names; in its own process they are `known` already.

        A function's own arguments stay as the file gives them.
        """
        self.was_called = True
        wanted = self._wanted
        known = {**self._known_of_task(known), **known}
        if self._models and self._elsewhere is None:
            known[MODELS] = self._models
        given = () if isinstance(self._source, type) else self._args
        every = {**_verl_arguments(known), **known}
        return {
            name: value
            for name, value in every.items()
            if name not in given and (name in wanted if wanted is not None else name != MODELS)
        }

    def _known_of_task(self, known: Mapping[str, object]) -> dict[str, object]:
        """Returns the truth, the row and, if it is named, the prompt, as far as they are not given.

        Raises: UserError when the row lacks a truth that is needed.
        """
        task = self._of_task
        if task is None:
            return {}
        if self.needs_truth and TRUTHS.isdisjoint(known):
            task.demand_truth()
        found: dict[str, object] = {"task": task.raw_task}
        if TRUTHS.isdisjoint(known):
            found |= {"truth": task.truth, "ground_truth": task.truth}
        if "prompt" not in known and (self._wanted is None or "prompt" in self._wanted):
            found["prompt"] = task.question
        return found

    def _failed(self, error: Exception) -> dict[str, float]:
        """Counts a failure; returns the numbers of an answer that fails alone, else raises it."""
        if isinstance(error, UserError):
            raise error
        kind = "no number" if isinstance(error, BadReward) else "raised"
        metrics.REWARD_FAILURES.add(1, {"trinity.reason": kind})
        if self._on_failure == "fail":
            raise error
        reason = f"{type(error).__name__}: {text_of(error)}"
        _limited_log.warning("a reward failed, and its answer gets 0", reason=reason)
        return {SCORE: 0.0, REWARD_FAILED: 1.0}

    def _numbers(self, parts: object) -> dict[str, float]:
        given = self._only(parts) if self._takes_lists else parts
        return as_parts(given, self._name, sums_all=self._sums_all)

    def _only(self, scores: object) -> object:
        """Returns the only score in the list from a function of lists."""
        try:
            if isinstance(scores, Mapping):
                raise TypeError("it is no list")
            (score,) = cast(Iterable[object], scores)
        except (TypeError, ValueError) as error:
            raise BadReward(
                f"the reward {self._name} takes lists (`solution_strs`) and returned "
                f"{type(scores).__name__} for one answer: return a list with a score for each"
            ) from error
        return score


def _verl_arguments(known: Mapping[str, object]) -> dict[str, object]:
    """Returns the arguments of veRL reward functions, except `ground_truth`."""
    row = known.get("task")
    columns = row if isinstance(row, Mapping) else {}
    found: dict[str, object] = {name: columns.get(name) for name in ("data_source", "extra_info")}
    if "response" in known:
        found["solution_str"] = known["response"]
    every = {**found, **known}
    return found | {
        lists: [every[single]] for lists, single in OF_VERLS_BATCHES.items() if single in every
    }


def check_reward(source: RewardSource, args: Mapping[str, JsonValue], name: str) -> None:
    """Checks only signatures, because constructors may do things that not every process may do.

    Raises: UserError when the arguments do not fit, or the reward names an unknown parameter.
    """
    if not callable(source):
        raise UserError(f"the reward {name} is neither a class nor a function")
    try:
        signature = _own_signature(source)
        signature.bind(**args) if isinstance(source, type) else signature.bind_partial(**args)
    except TypeError as error:
        raise UserError(f"the reward {name} refuses its reward_fn_args: {error}") from error
    except ValueError:  # callables written in C have no signature
        return
    called = signature if not isinstance(source, type) else _call_signature(source, name)
    given = () if isinstance(source, type) else args
    parameters = [p for p in called.parameters.values() if p.name not in given]
    known = KNOWN | OF_VERLS_BATCHES.keys()
    unknown = [p.name for p in parameters if _is_required(p) and p.name not in known]
    if unknown:
        raise UserError(
            f"the reward {name} wants {', '.join(unknown)}, which it is not given: it may name "
            f"{', '.join(sorted(KNOWN))}"
        )


def _own_signature(source: RewardSource) -> inspect.Signature:
    """Returns the arguments that can have an effect; empty for a class without a constructor."""
    if isinstance(source, type) and source.__init__ is RewardFn.__init__:  # type: ignore[misc]
        return inspect.Signature()
    return inspect.signature(source)


@lru_cache
def _parameters(source: Hashable, name: str) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Returns the parameters that it is given, None for all, and those without a default.

    A veRL function with `**kwargs` gets all veRL arguments, to pass them on.

    The result is cached, because a reward is made for every run.
    """
    assert callable(source)
    called = (
        _call_signature(source, name) if isinstance(source, type) else inspect.signature(source)
    )
    parameters = called.parameters.values()
    demanded = frozenset(p.name for p in parameters if _is_required(p))
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        named = {p.name for p in parameters}
        if "solution_str" in named:
            return OF_VERL | named, demanded
        if "solution_strs" in named:
            return frozenset(OF_VERLS_BATCHES) | named, demanded
        return None, demanded
    return frozenset(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL), demanded


def _call_signature(source: type, name: str) -> inspect.Signature:
    """Returns the signature by which an object of the class is called, without the object."""
    own = next(
        (vars(base)["__call__"] for base in source.__mro__ if "__call__" in vars(base)), None
    )
    if own is None:
        raise UserError(f"the reward {name} is a class without __call__")
    if not inspect.isfunction(own):  # a static or class method
        return inspect.signature(own.__get__(None, source))
    signature = inspect.signature(own)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    return parameter.default is parameter.empty and parameter.kind not in variable


def _in_thread(source: RewardSource) -> bool:
    return source.in_thread if isinstance(source, type) and issubclass(source, RewardFn) else True


def _is_async(source: RewardSource) -> bool:
    """True for an `async def`, or a class or object whose `__call__` is one."""
    return inspect.iscoroutinefunction(source) or inspect.iscoroutinefunction(
        getattr(source, "__call__", None)  # noqa: B004  # its kind is checked, not whether it is
    )


def _sums_all(source: RewardSource) -> bool:
    return isinstance(source, type) and issubclass(source, RewardFn) and source.sums_all


def _build(
    source: RewardSource, args: Mapping[str, JsonValue], name: str
) -> Callable[..., RewardParts | Awaitable[RewardParts]]:
    if not callable(source):
        raise UserError(f"the reward {name} is neither a class nor a function")
    if not isinstance(source, type):
        return partial(source, **args)
    try:
        built: Callable[..., RewardParts | Awaitable[RewardParts]] = source(**args)
    except TypeError as error:
        raise UserError(f"the reward {name} refuses its reward_fn_args: {error}") from error
    return built
