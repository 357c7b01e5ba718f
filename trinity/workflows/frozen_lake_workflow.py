"""The frozen lake game: cross the ice to the goal without falling into a hole."""

import random
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from trinity.data.rows import row_name
from trinity.errors import UserError
from trinity.types import Experience, FinishReason, JsonValue
from trinity.workflows.messages import Message
from trinity.workflows.multi_turn import MultiTurnWorkflow
from trinity.workflows.workflow import Arguments

START, ICE, HOLE, GOAL = "S", "F", "H", "G"
PLAYER = "P"
STEPS: Mapping[str, tuple[int, int]] = {
    "left": (0, -1),
    "down": (1, 0),
    "right": (0, 1),
    "up": (-1, 0),
}
DIRECTIONS = tuple(STEPS)
MAX_DRAWS = 10_000
Position2D = tuple[int, int]
RULES = """\
You cross a frozen lake, seen from above: P is you, F is ice, H is a hole in the ice and G is the \
goal. Reach G and do not step on H. Each turn you make one move: left, down, right or up; the edge \
of the lake stops you. Think first, then end your reply with the move in this form:
<action>down</action>"""
SLIPPERY = "\nThe ice is slippery: a move may take you to one side of where you want to go."
NO_MOVE = "There is no move in your reply. End it with <action>left</action>, down, right or up."
ACTION = re.compile(r"<action>\s*(\w+)\s*</action>", re.IGNORECASE)
SIZE, ICE_SHARE = 4, 0.8


@dataclass(slots=True)
class FrozenLake:
    """A lake with the player's position.

    Rows are strings of S (start), F (ice), H (hole) and G (goal). With `rng` the ice is
    slippery: a move goes in the intended direction in one of three cases, else to one of the sides.
    """

    rows: tuple[str, ...]
    position: Position2D
    rng: random.Random | None = None

    @classmethod
    def from_rows(cls, rows: Sequence[str], rng: random.Random | None = None) -> "FrozenLake":
        """Makes a lake with the player at the start; raises UserError for invalid rows."""
        grid = tuple(str(row) for row in rows)
        text = "".join(grid)
        is_lake = {len(row) for row in grid} == {len(grid)} and set(text) <= set("SFHG")
        if not is_lake or text.count(START) != 1 or GOAL not in text:
            raise UserError(
                f"the map {list(grid)} is no frozen lake: give as many rows as columns, of the "
                "letters S (start, once), F (ice), H (hole) and G (goal)"
            )
        start = divmod(text.index(START), len(grid))
        return cls(grid, start, rng)

    def move(self, direction: str) -> None:
        """Moves the player one step; the edge of the lake stops it."""
        if self.rng is not None:
            turn = self.rng.randrange(3) - 1
            direction = DIRECTIONS[(DIRECTIONS.index(direction) + turn) % 4]
        self.position = next_position(self.position, direction, len(self.rows))

    @property
    def tile(self) -> str:
        """The tile under the player."""
        return self.rows[self.position[0]][self.position[1]]

    @property
    def is_over(self) -> bool:
        """True if the player has reached the goal or fallen into a hole."""
        return self.tile in (GOAL, HOLE)

    def render(self) -> str:
        """Returns the lake with the player as text."""
        rows = [list(row.replace(START, ICE)) for row in self.rows]
        rows[self.position[0]][self.position[1]] = PLAYER
        return "\n".join(" ".join(row) for row in rows)


def next_position(place: Position2D, direction: str, size: int) -> Position2D:
    """Returns the field that a step leads to."""
    down, right = STEPS[direction]
    row, column = place[0] + down, place[1] + right
    return (min(max(row, 0), size - 1), min(max(column, 0), size - 1))


def random_rows(*, size: int, ice_share: float, seed: int, max_steps: int) -> tuple[str, ...]:
    """Draws a lake whose goal is within `max_steps`; the same arguments draw the same lake.

    Raises: UserError when MAX_DRAWS draws give no such lake.
    """
    dice = random.Random(f"frozen lake {seed}")
    for _ in range(MAX_DRAWS):
        tiles = [ICE if dice.random() < ice_share else HOLE for _ in range(size * size)]
        start, goal = dice.sample(range(size * size), 2)
        tiles[start], tiles[goal] = START, GOAL
        rows = tuple("".join(tiles[i * size : (i + 1) * size]) for i in range(size))
        if 1 <= distance(rows, divmod(start, size)) <= max_steps:
            return rows
    raise UserError(
        f"no lake of size {size} with p {ice_share} has a way of at most {max_steps} steps: give "
        "a greater `p` or `env_max_steps`"
    )


def distance(rows: Sequence[str], start: Position2D) -> int:
    """Returns the steps to the goal around the holes; -1 if it cannot be reached."""
    steps = {start: 0}
    waiting = deque([start])
    while waiting:
        place = waiting.popleft()
        tile = rows[place[0]][place[1]]
        if tile == GOAL:
            return steps[place]
        if tile == HOLE:
            continue
        for direction in DIRECTIONS:
            neighbor = next_position(place, direction, len(rows))
            if neighbor not in steps:
                steps[neighbor] = steps[place] + 1
                waiting.append(neighbor)
    return -1


class FrozenLakeWorkflow(MultiTurnWorkflow):
    """Reward 1 if the goal is reached, else 0; metrics `env_steps` and `agent_steps`.

    A row's lake is drawn from `size` (4), `p`, the share of ice (0.8), and `seed` (its number in
    the taskset); `desc` in workflow_args, a list or lines of S, F, H and G, sets one lake for all.
    A turn without a move counts only for `agent_max_steps`.
    """

    is_async = True
    shares_loop = True
    gives_several_samples = True
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
        num_moves, max_moves = 0, arguments.positive_int("env_max_steps")
        lake = self._lake(arguments, max_moves)
        messages = self._begin(lake)
        for _ in range(arguments.positive_int("agent_max_steps")):
            (turn,) = await self.model.chat_async(messages)
            if turn.finish_reason is FinishReason.PROMPT_TRUNCATED:
                break
            messages.append(Message(role="assistant", content=turn.response_text))
            move = parse_move(turn.response_text)
            if move is not None:
                lake.move(move)
                num_moves += 1
            if lake.is_over or num_moves == max_moves:
                break
            observation = lake.render() if move else f"{NO_MOVE}\n{lake.render()}"
            messages.append(Message(role="user", content=observation))
        num_turns = sum(message["role"] == "assistant" for message in messages)
        return self.experiences(
            messages,
            reward=float(lake.tile == GOAL),
            info={"env_steps": num_moves, "agent_steps": num_turns},
        )

    def _begin(self, lake: FrozenLake) -> list[Message]:
        rules = RULES + (SLIPPERY if lake.rng else "")
        return [
            Message(role="system", content=self.task.system_prompt or rules),
            Message(role="user", content=lake.render()),
        ]

    def _lake(self, arguments: Arguments, max_steps: int) -> FrozenLake:
        seed = int(self._number("seed", self.task.row))
        chance = random.Random(f"ice {seed}") if arguments.boolean("is_slippery") else None
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
                f"taskset {self.task.taskset!r}, {row_name(self.task.row)}: "
                f"its column `{column}` is "
                f"{value!r}, which is no number"
            )
        return value


def parse_move(reply: str) -> str | None:
    """Returns the last move that a reply names, if it is valid."""
    moves = [move.lower() for move in ACTION.findall(reply)]
    return moves[-1] if moves and moves[-1] in DIRECTIONS else None
