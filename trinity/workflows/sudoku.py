"""Sudoku: each row, column and box holds every number once."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt

from trinity.errors import UserError
from trinity.types import JsonValue

EMPTY = 0
Cells = list[list[int]]


@dataclass(frozen=True, slots=True)
class Move:
    """A number for a cell; all three values count from 1."""

    row: int
    column: int
    number: int


class Sudoku:
    """A board that accepts moves allowed by the rules; any solution counts."""

    def __init__(self, cells: Cells) -> None:
        self.cells = [list(row) for row in cells]
        self.size = len(cells)
        self._box = isqrt(self.size)

    def play(self, move: Move) -> str:
        """Fills a cell; returns the reason if the rules forbid it."""
        if not all(1 <= value <= self.size for value in (move.row, move.column, move.number)):
            return f"rows, columns and numbers go from 1 to {self.size}"
        row, column = move.row - 1, move.column - 1
        if self.cells[row][column] != EMPTY:
            return f"row {move.row}, column {move.column} is filled already"
        if move.number in self._around(row, column):
            return f"{move.number} is in the row, the column or the box already"
        self.cells[row][column] = move.number
        return ""

    @property
    def is_solved(self) -> bool:
        """True if every cell is filled, as `play` enforces the rules."""
        return all(EMPTY not in row for row in self.cells)

    def drawn(self) -> str:
        """Returns the board as text, with a dot for an empty cell."""
        return "\n".join(" ".join(str(number or ".") for number in row) for row in self.cells)

    def _around(self, row: int, column: int) -> set[int]:
        top, left = row - row % self._box, column - column % self._box
        box = (line[left : left + self._box] for line in self.cells[top : top + self._box])
        in_box = {number for line in box for number in line}
        return in_box | set(self.cells[row]) | {line[column] for line in self.cells}


def read_board(value: JsonValue) -> Sudoku:
    """Reads a board from 81 or 16 characters, 0 or a dot for an empty cell, or a list of rows.

    Raises: UserError for an invalid board, or one that breaks the rules.
    """
    numbers = list(_numbers(value))
    size = isqrt(len(numbers))
    is_square = size * size == len(numbers) and isqrt(size) ** 2 == size and size > 1
    if not is_square or not all(0 <= number <= size for number in numbers):
        raise UserError(
            f"the puzzle {value!r} is no sudoku: give 81 (or 16) characters, 0 or a dot for an "
            "empty cell, or a list of 9 (or 4) rows"
        )
    board = Sudoku([[EMPTY] * size for _ in range(size)])
    for place, number in enumerate(numbers):
        row, column = divmod(place, size)
        if number and board.play(Move(row + 1, column + 1, number)):
            raise UserError(f"the puzzle {value!r} has {number} twice in a row, column or box")
    return board


def random_board(*, size: int, num_empty: int, seed: int) -> Sudoku:
    """Draws a solvable board; the same arguments draw the same board."""
    dice = random.Random(f"sudoku {seed}")
    box = isqrt(size)
    if box * box != size or size < 2:
        raise UserError(f"a sudoku of size {size} has no boxes: give 4 or 9")
    numbers = dice.sample(range(1, size + 1), size)
    rows, columns = _mixed(box, dice), _mixed(box, dice)
    cells = [[numbers[(box * (r % box) + r // box + c) % size] for c in columns] for r in rows]
    for place in dice.sample(range(size * size), min(num_empty, size * size)):
        cells[place // size][place % size] = EMPTY
    return Sudoku(cells)


def _mixed(box: int, dice: random.Random) -> list[int]:
    """Returns a random order of lines that keeps the lines of a box together."""
    bands = dice.sample(range(box), box)
    return [band * box + line for band in bands for line in dice.sample(range(box), box)]


def _numbers(value: JsonValue) -> Iterable[int]:
    """Yields the numbers of a board; -1 for an invalid entry."""
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int):
        yield value
    elif isinstance(value, str):
        for part in value.split() if " " in value.strip() else value.strip():
            yield from [int(d) for d in part] if part.isdigit() else [0 if part == "." else -1]
    else:
        yield -1
