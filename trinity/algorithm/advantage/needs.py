"""What an advantage function asks of the pipeline, said where the function is defined.

@needs(Needs(whole_step=True))
def above_everyone(samples: Samples) -> Advantages: ...

Where it depends on the arguments, a function of them stands in place of `Needs`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trinity.types import JsonValue

Arguments = Mapping[str, JsonValue]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a function needs; nothing of it is what costs least.

    Without `whole_step` a user's function sees one group a call. Ours may see many, each of which
    they treat as if it were alone: what a group gives never depends on what it is claimed with.
    One of ours that cannot promise it for what it asks says `one_group`.
    """

    whole_step: bool = False
    """All groups of an explore step in one call, once all of them have ended."""
    one_group: bool = False
    """A call of its own for each group, of ours too; where others need the whole step, that."""
    mean_logprobs: bool = False
    """`Samples.mean_logprobs`."""
    step_reward_key: str = ""
    """Where samples keep `Samples.step_rewards`: a key of their info, metrics or arrays."""
    state_key: str = ""
    """Where they keep `Samples.states`; what lies there is only compared."""
    numbers: tuple[str, ...] = ()
    """Keys of `Rollouts.numbers`, for experience operators: of their info, metrics, reward parts or
    arrays."""
    content: bool = False
    """`Rollouts.contents`, for experience operators."""

    @property
    def reads_samples(self) -> bool:
        """Whether something is needed that only the whole samples have."""
        keys = (self.step_reward_key, self.state_key, self.numbers)
        return self.mean_logprobs or self.content or any(keys)

    def also(self, other: "Needs") -> "Needs":
        """What both need; of keys of which there can be one, this one's goes first."""
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
        """From the fields as JSON has them."""
        return cls(**{**message, "numbers": tuple(message["numbers"])})


NOTHING = Needs()
_NEEDS: dict[Callable[..., Any], Needs | Callable[[Arguments], Needs]] = {}


def needs(what: Needs | Callable[[Arguments], Needs]) -> Callable[[Function], Function]:
    """Decorator that notes what the function below it needs."""

    def note(function: Function) -> Function:
        _NEEDS[function] = what
        return function

    return note


def needs_of(function: Callable[..., Any], arguments: Arguments) -> Needs:
    """What a function needs when it is called with these arguments."""
    what = _NEEDS.get(function, NOTHING)
    return what if isinstance(what, Needs) else what(arguments)
