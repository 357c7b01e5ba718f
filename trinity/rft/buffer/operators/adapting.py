"""Calls operators of Trinity-RFT on the samples of an explore step, and gives ours as theirs."""

import asyncio
import atexit
import inspect
from collections.abc import Awaitable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from trinity.algorithm.advantage.needs import Needs, needs, needs_of
from trinity.errors import UserError
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Changes, Rollouts
from trinity.rft.buffer.experiences import (
    OperatedExperience,
    ReturnedExperiences,
    experiences_of,
    group_metrics,
    ordered,
    samples_of,
)
from trinity.rft.buffer.operators import ExperienceOperator, ExperienceOperatorV1
from trinity.runtime.json_values import JsonValue
from trinity.user_code.adapted_part import AdaptedPart, set_attributes

_MODULE = ExperienceOperator.__module__
WHOLE_STEP = Needs(whole_step=True, content=True)
"""Such classes see all experiences of an explore step."""


class AdaptedOperator(AdaptedPart):
    """A class of an operator as an experience operator."""

    input_type = "Rollouts"
    return_type = "Changes"

    def __call__(self, rollouts: Rollouts, /, **arguments: Any) -> Changes:
        """Returns the changes that the class makes to experiences."""
        operator = self.instance(arguments)
        exps = experiences_of(rollouts)
        before = [dict(exp.info) for exp in exps]
        kept, metrics = _processed(operator, exps)
        outcome = ReturnedExperiences.of(exps, kept)
        if outcome.copies:
            raise UserError("it returned an experience twice: only an advantage may do so")
        if any(exp.advantages is not None for exp in outcome.returned.values()):
            raise UserError("it sets `advantages`: name it in `algorithm.advantage_fn`")
        return Changes(
            left_out=outcome.left_out,
            reason=f"{self.__name__} dropped it",
            masked=np.array([exp.is_masked for exp in _after(exps, outcome)], dtype=np.bool_),
            rewards=_rewards(_after(exps, outcome), rollouts),
            numbers=_new_numbers(_after(exps, outcome), before),
            metrics=group_metrics(metrics, rollouts.num_groups),
        )

    def _make(self, values: Mapping[str, JsonValue]) -> Any:
        """Returns the object, which is closed when the process that called it ends."""
        made = super()._make(values)
        atexit.register(_close, made)
        return made


def _close(operator: Any) -> None:
    closing = operator.close()
    if inspect.isawaitable(closing):
        asyncio.run(_awaited(closing))


async def _awaited(closing: Awaitable[Any]) -> None:
    await closing


def _processed(operator: Any, exps: list[OperatedExperience]) -> tuple[object, dict[str, Any]]:
    if isinstance(operator, ExperienceOperatorV1):
        answer = asyncio.run(_prepared(operator, list(exps)))
    else:
        answer = operator.process(list(exps))
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise UserError("`process` must return a list of experiences and a dict of metrics")
    return answer[0], dict(answer[1] or {})


async def _prepared(operator: ExperienceOperatorV1, exps: list[Any]) -> Any:
    """Prepares and calls it; each call has a new event loop."""
    if not vars(operator).get("_is_prepared"):
        await operator.prepare()
        vars(operator)["_is_prepared"] = True
    return await operator.process(exps)


def _after(exps: list[OperatedExperience], outcome: ReturnedExperiences) -> list[Any]:
    return [outcome.returned.get(number, exp) for number, exp in enumerate(exps)]


def _rewards(exps: list[Any], rollouts: Rollouts) -> Any:
    pairs = zip(exps, rollouts.rewards, strict=True)
    return np.array(
        [old if exp.reward is None else float(exp.reward) for exp, old in pairs], dtype=np.float64
    )


def _new_numbers(exps: list[Any], before: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns numbers that were put into `info`, for the operators that follow."""
    pairs = list(zip(exps, before, strict=True))
    names = {name for exp, old in pairs for name, v in exp.info.items() if old.get(name) != v}
    listed = {
        name: np.array([_as_number(exp.info.get(name)) for exp in exps], dtype=np.float64)
        for name in sorted(names)
    }
    return {name: values for name, values in listed.items() if not np.isnan(values).all()}


def _as_number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan


def adapt_operator(name: str, source: type) -> AdaptedOperator | type:
    """Returns the class as a part; one that is no operator stays as it is.

    Raises: UserError when it needs models.
    """
    if not issubclass(source, ExperienceOperator | ExperienceOperatorV1):
        return source
    if _uses_models(source):
        raise UserError(
            f"{source.__name__} of `{name}` asks `auxiliary_models`, and the buffer has none: let "
            "the workflow ask them and store what they say in `info`"
        )
    adapted = AdaptedOperator(source)
    needs(WHOLE_STEP)(adapted)
    return adapted


def _uses_models(source: type) -> bool:
    functions = (function for _, function in inspect.getmembers(source, inspect.isfunction))
    own = (f for f in functions if f.__module__ != ExperienceOperatorV1.__module__)
    return any("auxiliary_models" in function.__code__.co_names for function in own)


class _BuiltInOperator(ExperienceOperator):
    """A built-in operator that takes experiences."""

    function_name: str

    def __init__(self, /, **arguments: Any) -> None:
        self.__arguments = arguments
        set_attributes(self, arguments)

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Applies the function's changes to the experiences."""
        exps = ordered(exps)
        rollouts = _rollouts_of(exps, type(self).function_name, self.__arguments)
        changes = OPERATORS.built_in(type(self).function_name)(rollouts, **self.__arguments)
        left_out = np.zeros(len(exps), np.bool_) if changes.left_out is None else changes.left_out
        for number, exp in enumerate(exps):
            if changes.rewards is not None and exp.reward is not None:
                exp.reward = float(changes.rewards[number])
            if changes.masked is not None and changes.masked[number]:
                exp.action_mask = exp.action_mask & False
        kept = [exp for number, exp in enumerate(exps) if not left_out[number]]
        metrics = {name: float(np.mean(values)) for name, values in changes.metrics.items()}
        return kept, {"filtered_count": int(left_out.sum()), **metrics}


def _rollouts_of(exps: list[Any], name: str, arguments: dict[str, Any]) -> Rollouts:
    keys = needs_of(OPERATORS.built_in(name), arguments).numbers
    known = [{**exp.info, **exp.metrics} for exp in exps]
    return Rollouts.of(
        samples_of(exps),
        is_truncated=np.array([exp.truncate_status == "response_truncated" for exp in exps]),
        has_reward=np.array([exp.reward is not None for exp in exps]),
        numbers={key: np.array([_as_number(own.get(key)) for own in known]) for key in keys},
    )


@lru_cache
def operator_class(name: str, function: str) -> type[ExperienceOperator]:
    """Returns the class of a built-in operator."""
    doc = f"The operator `{function}` as a class of Trinity-RFT."
    namespace = {
        "function_name": function,
        "__doc__": doc,
        "__module__": _MODULE,
    }
    made = type(name, (_BuiltInOperator,), namespace)
    assert issubclass(made, ExperienceOperator)
    return made
