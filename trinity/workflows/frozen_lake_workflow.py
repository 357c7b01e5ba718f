"""The model crosses a frozen lake, with one move per turn."""

import random
import re
from collections.abc import Mapping
from typing import ClassVar

from trinity.errors import UserError
from trinity.types import Experience, FinishReason, JsonValue
from trinity.workflows.arguments import Arguments
from trinity.workflows.frozen_lake import DIRECTIONS, GOAL, FrozenLake, random_rows
from trinity.workflows.messages import Message
from trinity.workflows.multi_turn import MultiTurnWorkflow

RULES = """\
You cross a frozen lake, seen from above: P is you, F is ice, H is a hole in the ice and G is the \
goal. Reach G and do not step on H. Each turn you make one move: left, down, right or up; the edge \
of the lake stops you. Think first, then end your reply with the move in this form:
<action>down</action>"""
SLIPPERY = "\nThe ice is slippery: a move may take you to one side of where you want to go."
NO_MOVE = "There is no move in your reply. End it with <action>left</action>, down, right or up."
ACTION = re.compile(r"<action>\s*(\w+)\s*</action>", re.IGNORECASE)
SIZE, ICE_SHARE = 4, 0.8


class FrozenLakeWorkflow(MultiTurnWorkflow):
    """Reward 1 if the goal is reached, else 0; metrics `env_steps` and `agent_steps`.

    A row's lake is drawn from `size` (4), `p`, the share of ice (0.8), and `seed` (its number in
    the taskset); `desc` in workflow_args, a list or lines of S, F, H and G, sets one lake for all.
    A turn without a move counts only for `agent_max_steps`.
    """

    is_async = True
    usual_args: ClassVar[Mapping[str, JsonValue]] = {
        "env_max_steps": 8,
        "agent_max_steps": 10,
        "desc": None,
        "is_slippery": False,
    }
    known_args: ClassVar[frozenset[str] | None] = frozenset(usual_args)

    async def run_async(self) -> list[Experience]:
        """Returns one experience, or several if turns do not continue one another."""
        arguments = Arguments(self)
        num_moves, max_moves = 0, arguments.count("env_max_steps")
        lake = self._lake(arguments, max_moves)
        messages = self._begin(lake)
        for _ in range(arguments.count("agent_max_steps")):
            (turn,) = await self.model.chat_async(messages)
            if turn.finish_reason is FinishReason.PROMPT_TRUNCATED:
                break
            messages.append(Message(role="assistant", content=turn.response_text))
            move = move_in(turn.response_text)
            if move is not None:
                lake.move(move)
                num_moves += 1
            if lake.is_over or num_moves == max_moves:
                break
            observation = lake.drawn() if move else f"{NO_MOVE}\n{lake.drawn()}"
            messages.append(Message(role="user", content=observation))
        num_turns = sum(message["role"] == "assistant" for message in messages)
        return self.experiences(
            messages,
            reward=float(lake.tile == GOAL),
            info={"env_steps": num_moves, "agent_steps": num_turns},
        )

    def _begin(self, lake: FrozenLake) -> list[Message]:
        rules = RULES + (SLIPPERY if lake.chance else "")
        return [
            Message(role="system", content=self.task.system_prompt or rules),
            Message(role="user", content=lake.drawn()),
        ]

    def _lake(self, arguments: Arguments, max_steps: int) -> FrozenLake:
        seed = int(self._number("seed", self.task.index))
        chance = random.Random(f"ice {seed}") if arguments.switch("is_slippery") else None
        desc = arguments.value("desc")
        if desc is not None:
            return FrozenLake.from_rows(self._rows(desc), chance)
        rows = random_rows(
            size=int(self._number("size", SIZE)),
            ice_share=self._number("p", ICE_SHARE),
            seed=seed,
            max_steps=max_steps,
        )
        return FrozenLake.from_rows(rows, chance)

    def _rows(self, desc: JsonValue) -> list[str]:
        if isinstance(desc, str):
            return desc.split()
        if not isinstance(desc, list):
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__}: workflow_args.desc is "
                f"{desc!r}: give the rows of a lake, as a list or as lines of a text"
            )
        return [str(row) for row in desc]

    def _number(self, column: str, usual: float) -> float:
        value = self.task.raw_task.get(column, usual)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(
                f"taskset {self.task.taskset!r}, row {self.task.index}: its column `{column}` is "
                f"{value!r}, which is no number"
            )
        return value


def move_in(reply: str) -> str | None:
    """Returns the last move that a reply names, if it is valid."""
    moves = [move.lower() for move in ACTION.findall(reply)]
    return moves[-1] if moves and moves[-1] in DIRECTIONS else None
