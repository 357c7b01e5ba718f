"""Declares the data that an advantage function needs from the pipeline.

@needs(Needs(whole_step=True))
def above_everyone(samples: Samples) -> Advantages: ...

If it depends on the arguments, a function of them takes the place of `Needs`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trinity.types import JsonValue

Arguments = Mapping[str, JsonValue]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The data that a function needs; the defaults cost least.

    Without `whole_step` a user's function sees one group per call. Built-in functions may see many,
    each of which they treat as if it were alone: the result of a group never depends on the groups
    that are claimed with it. A built-in function that cannot promise this for its arguments sets
    `one_group`.
    """

    whole_step: bool = False
    """All groups of an explore step in one call, once all of them have ended."""
    one_group: bool = False
    """One call per group, for built-in functions too; if others need the whole step, that
    applies."""
    mean_logprobs: bool = False
    """`Samples.mean_logprobs`."""
    step_reward_key: str = ""
    """The key of `Samples.step_rewards` in the samples' info, metrics or arrays."""
    state_key: str = ""
    """The key of `Samples.states`; its values are only compared."""
    numbers: tuple[str, ...] = ()
    """Keys of `Rollouts.numbers`, for experience operators, in info, metrics, reward parts or
    arrays."""
    content: bool = False
    """`Rollouts.contents`, for experience operators."""

    @property
    def reads_samples(self) -> bool:
        """True if something is needed that only the whole samples have."""
        keys = (self.step_reward_key, self.state_key, self.numbers)
        return self.mean_logprobs or self.content or any(keys)

    def merge(self, other: "Needs") -> "Needs":
        """Returns the needs of both; where only one key is possible, this one's comes first."""
        return Needs(
            whole_step=self.whole_step or other.whole_step,
            one_group=self.one_group or other.one_group,
            mean_logprobs=self.mean_logprobs or other.mean_logprobs,
            step_reward_key=self.step_reward_key or other.step_reward_key,
            state_key=self.state_key or other.state_key,
            numbers=tuple(dict.fromkeys((*self.numbers, *other.numbers))),
            content=self.content or other.content,
        )

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> "Needs":
        """Builds it from its fields in JSON."""
        return cls(**{**message, "numbers": tuple(message["numbers"])})


NOTHING = Needs()
_NEEDS: dict[Callable[..., Any], Needs | Callable[[Arguments], Needs]] = {}


def needs(what: Needs | Callable[[Arguments], Needs]) -> Callable[[Function], Function]:
    """Decorates a function with its needs."""

    def note(function: Function) -> Function:
        _NEEDS[function] = what
        return function

    return note


def needs_of(function: Callable[..., Any], arguments: Arguments) -> Needs:
    """Returns the needs of a function when it is called with these arguments."""
    what = _NEEDS.get(function, NOTHING)
    return what if isinstance(what, Needs) else what(arguments)
