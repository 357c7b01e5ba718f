"""An environment of OpenEnv in one file: a sum, and a second try for half the reward."""

import random
from typing import Any

from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

REWARDS = (1.0, 0.5)
"""Of the right answer, by the number of wrong ones before it."""
PAIRS = 8_100
STRIDE = 3_011
"""Has no divisor in common with the number of pairs, so each comes once."""


class SumAnswer(Action):
    """The model's answer: it is the value of an action's only field."""

    answer: str


class SumQuestion(Observation):
    """The message to the model: it is the text of an observation's only field."""

    text: str = ""


class Sums(Environment):
    """Asks for the sum of two two-digit numbers, which follow from the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._numbers = (0, 0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> SumQuestion:
        """Begins an episode; the first 8,100 seeds give 8,100 pairs of numbers."""
        number = random.randrange(PAIRS) if seed is None else seed
        tens, ones = divmod(number * STRIDE % PAIRS, 90)
        self._numbers = 10 + tens, 10 + ones
        self._state = State(episode_id=episode_id, step_count=0)
        return SumQuestion(text="{}+{}=".format(*self._numbers))

    def step(self, action: SumAnswer, **_: Any) -> SumQuestion:
        """Scores an answer; after the first wrong one it says so."""
        tries = self._state.step_count
        self._state.step_count += 1
        is_right = action.answer.strip() == str(sum(self._numbers))
        is_over = is_right or tries + 1 == len(REWARDS)
        return SumQuestion(text="no", done=is_over, reward=REWARDS[tries] if is_right else 0.0)

    @property
    def state(self) -> State:
        """What a client's `state` returns."""
        return self._state


app = create_app(Sums, SumAnswer, SumQuestion, env_name="sums", max_concurrent_envs=512)
