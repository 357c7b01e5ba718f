"""The two kinds of functions that the buffer calls, and their conversion to and from JSON."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.samples import Advantages
from trinity.algorithm.advantage.wire import (
    Message,
    advantages_from_json,
    advantages_to_json,
    samples_from_json,
    samples_to_json,
)
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Changes
from trinity.operators.wire import (
    changes_from_json,
    changes_to_json,
    rollouts_from_json,
    rollouts_to_json,
)
from trinity.plugins import Registry
from trinity.types import JsonObject

KindName = Literal["advantage", "operator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The input and result of functions of one kind."""

    registry: Registry[Callable[..., Any]]
    gives: type
    given_to_json: Callable[[Any], JsonObject]
    given_from_json: Callable[[Message], object]
    answer_to_json: Callable[[Any], JsonObject]
    answer_from_json: Callable[[Message], Any]

    def call(self, name: str, value: object, arguments: Mapping[str, Any]) -> Any:
        """Calls a function; raises TypeError for a result of another type, or its own error."""
        answer = self.registry.get(name)(value, **arguments)
        if not isinstance(answer, self.gives):
            raise TypeError(
                f"it gave {type(answer).__name__}, where {self.gives.__name__} of "
                f"{self.gives.__module__} is expected"
            )
        return answer


KINDS: Mapping[KindName, Kind] = {
    "advantage": Kind(
        registry=ADVANTAGES,
        gives=Advantages,
        given_to_json=samples_to_json,
        given_from_json=samples_from_json,
        answer_to_json=advantages_to_json,
        answer_from_json=advantages_from_json,
    ),
    "operator": Kind(
        registry=OPERATORS,
        gives=Changes,
        given_to_json=rollouts_to_json,
        given_from_json=rollouts_from_json,
        answer_to_json=changes_to_json,
        answer_from_json=changes_from_json,
    ),
}
