"""Rewards of users, called in processes that can be killed."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from services.explorer.rollout.user_processes import UserProcessPool
from trinity.errors import UserError
from trinity.isolation.failures import UserCodeFailed
from trinity.isolation.parts import PartRef, is_of_user
from trinity.isolation.values import encode_known
from trinity.rewards.reward import BadReward, RewardSource
from trinity.types import JsonObject

USERS_PATTERN = "pattern"
"""An argument of built-in rewards with which a user's regular expression runs."""
Message = dict[str, Any]


def needs_process(source: RewardSource, args: JsonObject) -> bool:
    """Returns true if a reward runs a user's code or regular expression, which may never end."""
    return USERS_PATTERN in args or is_of_user(source)


@dataclass(slots=True, kw_only=True)
class IsolatedReward:
    """A reward of one attempt; every call has a process of its own, and constructs it there.

    reward = IsolatedReward(pool=pool, source=score, args={}, name="my_rewards.score")
    numbers = await reward({"response": "4"})
    """

    pool: UserProcessPool
    source: RewardSource
    args: JsonObject
    name: str
    stuck_at: str = ""
    """Where the reward was when its call was given up."""

    @property
    def reference(self) -> Message:
        """The reward, as its process finds it."""
        return {"part": asdict(PartRef.of(self.name, self.source)), "args": self.args}

    async def __call__(self, values: Mapping[str, object]) -> dict[str, float]:
        """Returns the reward's numbers.

        Raises: BadReward, UserError, UserCodeFailed, UserProcessDied.
        """
        request = {
            "kind": "reward",
            **self.reference,
            "values": encode_known(values, self.name),
        }
        async with self.pool.lease() as process:
            process.write(request)
            try:
                answer = await process.read()
            except asyncio.CancelledError:
                self.stuck_at = f"the reward {self.name} ran{await process.place()}"
                raise
        raise_failure(answer)
        numbers: dict[str, float] = answer["numbers"]
        return numbers

    async def check(self) -> None:
        """Constructs the reward once.

        Raises: UserError when it cannot be constructed.
        """
        async with self.pool.lease() as process:
            answer = await process.load([self.reference])
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
