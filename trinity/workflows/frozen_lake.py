"""The frozen lake game: cross the ice to the goal without falling into a hole."""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trinity.errors import UserError

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
Place = tuple[int, int]


@dataclass(slots=True)
class FrozenLake:
    """A lake with the player's position.

    Rows are strings of S (start), F (ice), H (hole) and G (goal). With `chance` the ice is
    slippery: a move goes in the intended direction in one of three cases, else to one of the sides.
    """

    rows: tuple[str, ...]
    place: Place
    chance: random.Random | None = None

    @classmethod
    def from_rows(cls, rows: Sequence[str], chance: random.Random | None = None) -> "FrozenLake":
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
        return cls(grid, start, chance)

    def move(self, direction: str) -> None:
        """Moves the player one step; the edge of the lake stops it."""
        if self.chance is not None:
            turn = self.chance.randrange(3) - 1
            direction = DIRECTIONS[(DIRECTIONS.index(direction) + turn) % 4]
        self.place = beside(self.place, direction, len(self.rows))

    @property
    def tile(self) -> str:
        """The tile under the player."""
        return self.rows[self.place[0]][self.place[1]]

    @property
    def is_over(self) -> bool:
        """True if the player has reached the goal or fallen into a hole."""
        return self.tile in (GOAL, HOLE)

    def drawn(self) -> str:
        """Returns the lake with the player as text."""
        rows = [list(row.replace(START, ICE)) for row in self.rows]
        rows[self.place[0]][self.place[1]] = PLAYER
        return "\n".join(" ".join(row) for row in rows)


def beside(place: Place, direction: str, size: int) -> Place:
    """Returns the field that a step leads to."""
    down, right = STEPS[direction]
    row, column = place[0] + down, place[1] + right
    return (min(max(row, 0), size - 1), min(max(column, 0), size - 1))


def random_rows(*, size: int, ice_share: float, seed: int, max_steps: int) -> tuple[str, ...]:
    """Draws a lake whose goal is within `max_steps`; the same arguments draw the same lake.

    Raises: UserError when none is found in MAX_DRAWS draws.
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


def distance(rows: Sequence[str], start: Place) -> int:
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
            neighbor = beside(place, direction, len(rows))
            if neighbor not in steps:
                steps[neighbor] = steps[place] + 1
                waiting.append(neighbor)
    return -1
