"""Calls a reward function of EasyR1 with one answer.

A file that `trinity config from-verl` writes names the function; its file is run at the first
answer, in the process that runs users' rewards.
"""

import hashlib
import inspect
import runpy
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

from trinity.errors import UserError
from trinity.rewards.reward import RewardFn
from trinity.types import JsonObject, JsonValue

_SEQUENTIAL = ("sequential", "function")
"""Values of `REWARD_TYPE`, or of the older `reward_type`, for functions of one answer."""


class FunctionReward(RewardFn):
    """A function of one answer, or of a batch, which then gets a batch of one.

    class Reward(FunctionReward):
        path = "/projects/mine/math.py"
        digest = "<sha256>"
        function = "compute_score"
        arguments = {"format_weight": 0.5}
    """

    path: ClassVar[str]
    digest: ClassVar[str]
    """The SHA-256 of the file when the job was converted."""
    function: ClassVar[str]
    arguments: ClassVar[JsonObject]
    kind: ClassVar[str] = "batch"
    """For files that do not say `REWARD_TYPE`."""
    sums_all = False

    def __call__(
        self, *, response: str, response_length: int, ground_truth: JsonValue
    ) -> dict[str, float]:
        """Returns the `overall` score of an answer as its reward, and the other scores.

        Raises: UserError if the file has changed since the job was converted.
        """
        row: JsonValue = {
            "response": response,
            "response_length": response_length,
            "ground_truth": ground_truth,
        }
        # releases until 0.3.2 give texts
        given = [row] if self._takes_rows else [response, ground_truth]
        if self._module.get("REWARD_TYPE", self.kind) in _SEQUENTIAL:
            scores = self._function(*given, **self.arguments)
        else:
            (scores,) = self._function(*([value] for value in given), **self.arguments)
        numbers = {str(name): float(value) for name, value in scores.items() if value is not None}
        return {"score": numbers.pop("overall"), **numbers}

    @cached_property
    def _module(self) -> Mapping[str, Any]:
        path = Path(self.path)
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != self.digest:
            raise UserError(
                f"{path} is missing or has changed since the job was converted: convert the script "
                "again, with --force"
            )
        return runpy.run_path(self.path)

    @property
    def _function(self) -> Callable[..., Any]:
        if self.function not in self._module:
            raise UserError(f"{self.path} defines no `{self.function}`: name one of its functions")
        return cast("Callable[..., Any]", self._module[self.function])

    @cached_property
    def _takes_rows(self) -> bool:
        """True if one argument is left for EasyR1 to give."""
        parameters = inspect.signature(self._function).parameters.values()
        required = (each.name for each in parameters if each.default is each.empty)
        return len([name for name in required if name not in self.arguments]) == 1
