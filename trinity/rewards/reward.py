"""Rewards: each names the parts of a response's score, whose sum is the reward.

A part named `score` is the reward alone, as in veRL, and what stands beside it are metrics. Classes
that were written for Trinity-RFT (`sums_all`) give the sum of all parts, as they do there.
"""

import inspect
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, partial
from typing import ClassVar, SupportsFloat, cast

from trinity.errors import UserError
from trinity.types import JsonValue

RewardParts = Mapping[str, float] | float
SCORE = "score"
"""The part that is the reward alone."""
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
TRUTHS = frozenset({"truth", "ground_truth"})
"""Parameters that a row may lack."""


class RewardFn:
    """Base of rewards; the arguments of `reward_fn_args` go to `__init__`.

        class ShortAnswer(RewardFn):
            def __init__(self, limit: int = 20) -> None:
                self._limit = limit

            def __call__(self, *, response: str) -> dict[str, float]:
                return {"short": float(len(response) <= self._limit)}

    `__call__` receives only the parameters that it names. Available are `response`, `truth` (or
    `ground_truth`), `prompt`, `messages` (the whole chat), `task` (the whole row),
    `response_length` in tokens, `response_token` (the ids) and `finish_reason`. A truth without a
    default is required: a row that has none is not scored. A function of veRL's gets its own
    arguments, too: `solution_str` is the response, `data_source` and `extra_info` are columns of
    the row.
    """

    in_thread: ClassVar[bool] = True
    """False for a reward that never waits and takes well under a millisecond."""
    sums_all: ClassVar[bool] = False
    """True where a part named `score` is one of several that are added up, as in Trinity-RFT."""

    __call__: Callable[..., RewardParts]
    """Returns the named parts of a score; a plain number is one part, named after the reward."""


RewardSource = type[RewardFn] | Callable[..., RewardParts]


class BoundReward:
    """A constructed reward: called with all known values, it passes on those that are named."""

    def __init__(self, source: RewardSource, args: Mapping[str, JsonValue], name: str) -> None:
        self._function = _build(source, args, name)
        self._name = name
        self.in_thread = _in_thread(source)
        self._sums_all = _sums_all(source)
        hashable = cast(Hashable, source if source.__hash__ else type(source))
        self._wanted, demanded = _parameters(hashable, name)
        self.needs_truth = not demanded.isdisjoint(TRUTHS)

    def __call__(self, **known: object) -> dict[str, float]:
        """Returns the parts of the score.

        Raises: TypeError when the reward returns neither numbers by name nor a number.
        """
        wanted = self._wanted
        every = known | _verl_arguments(known)
        values = every if wanted is None else {k: v for k, v in every.items() if k in wanted}
        parts = self._function(**values)
        if isinstance(parts, SupportsFloat) and not isinstance(parts, Mapping):
            return {self._name.rpartition(".")[2]: float(parts)}
        if not isinstance(parts, Mapping):
            raise TypeError(
                f"the reward {self._name} returned {type(parts).__name__}, neither a dict of named "
                "numbers nor a number"
            )
        has_score = SCORE in parts and not self._sums_all
        return {
            str(name): self._number(str(name), value)
            for name, value in parts.items()
            if not has_score or name == SCORE or isinstance(value, SupportsFloat)
        }

    def parts_of(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Returns those of a reward's numbers whose sum is the reward."""
        has_score = SCORE in numbers and not self._sums_all
        return {SCORE: numbers[SCORE]} if has_score else dict(numbers)

    def _number(self, name: str, value: object) -> float:
        if not isinstance(value, SupportsFloat):
            raise TypeError(
                f"the reward {self._name} returned {value!r:.60} as {name!r}, which is no number: "
                f"name the reward {SCORE!r} to return something else beside it"
            )
        return float(value)


def _verl_arguments(known: Mapping[str, object]) -> dict[str, object]:
    """Returns what veRL calls its reward functions with, beside `ground_truth`."""
    row = known.get("task")
    columns = row if isinstance(row, Mapping) else {}
    found: dict[str, object] = {name: columns.get(name) for name in ("data_source", "extra_info")}
    return found | ({"solution_str": known["response"]} if "response" in known else {})


def check_reward(source: RewardSource, args: Mapping[str, JsonValue], name: str) -> None:
    """Checks only signatures, because constructors may do things that not every process may do.

    Raises: UserError when the arguments do not fit, or the reward names an unknown parameter.
    """
    if not callable(source):
        raise UserError(f"the reward {name} is neither a class nor a function")
    try:
        signature = inspect.signature(source)
        signature.bind(**args) if isinstance(source, type) else signature.bind_partial(**args)
    except TypeError as error:
        raise UserError(f"the reward {name} refuses its reward_fn_args: {error}") from error
    except ValueError:  # callables written in C have no signature
        return
    if inspect.iscoroutinefunction(source):
        raise UserError(
            f"the reward {name} is asynchronous, and rewards are called in a thread: write it "
            "without `async`, or call it from a workflow"
        )
    called = signature if not isinstance(source, type) else _call_signature(source, name)
    parameters = [p for p in called.parameters.values() if p.name not in {"self", *args}]
    unknown = [p.name for p in parameters if _is_required(p) and p.name not in KNOWN]
    if unknown:
        raise UserError(
            f"the reward {name} wants {', '.join(unknown)}, which it is not given: it may name "
            f"{', '.join(sorted(KNOWN))}"
        )


@lru_cache
def _parameters(source: Hashable, name: str) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Returns the parameters that it names, None for all, and those without a default.

    The result is cached, because a reward is made for every run.
    """
    assert callable(source)
    called = (
        _call_signature(source, name) if isinstance(source, type) else inspect.signature(source)
    )
    parameters = called.parameters.values()
    demanded = frozenset(p.name for p in parameters if _is_required(p))
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None, demanded
    return frozenset(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL), demanded


def _call_signature(source: type, name: str) -> inspect.Signature:
    for base in source.__mro__:
        if "__call__" in vars(base):
            return inspect.signature(vars(base)["__call__"])
    raise UserError(f"the reward {name} is a class without __call__")


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    return parameter.default is parameter.empty and parameter.kind not in variable


def _in_thread(source: RewardSource) -> bool:
    return source.in_thread if isinstance(source, type) and issubclass(source, RewardFn) else True


def _sums_all(source: RewardSource) -> bool:
    return isinstance(source, type) and issubclass(source, RewardFn) and source.sums_all


def _build(
    source: RewardSource, args: Mapping[str, JsonValue], name: str
) -> Callable[..., RewardParts]:
    if not callable(source):
        raise UserError(f"the reward {name} is neither a class nor a function")
    if not isinstance(source, type):
        return partial(source, **args)
    try:
        built: Callable[..., RewardParts] = source(**args)
    except TypeError as error:
        raise UserError(f"the reward {name} refuses its reward_fn_args: {error}") from error
    return built
