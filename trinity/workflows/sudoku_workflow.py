"""Sudoku: each row, column and box holds every number once."""

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

from trinity.data.rows import row_name
from trinity.errors import UserError
from trinity.rewards.tags import tagged
from trinity.types import Experience, FinishReason, JsonValue
from trinity.workflows.messages import Message
from trinity.workflows.multi_turn import MultiTurnWorkflow
from trinity.workflows.workflow import Arguments

EMPTY = 0
Cells = list[list[int]]
PUZZLE = "puzzle"
SIZE, NUM_EMPTY = 9, 10
SOLVED, OPEN, BROKEN = 1.0, 0.0, -1.0
MOVE = re.compile(r"(\d{1,9})\D+(\d{1,9})\D+(\d{1,9})\D*")


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
    box = isqrt(abs(size))
    if box * box != size or box < 2:
        raise UserError(f"a sudoku of size {size} has no boxes: give 4 or 9")
    numbers = dice.sample(range(1, size + 1), size)
    rows, columns = _mixed(box, dice), _mixed(box, dice)
    cells = [[numbers[(box * (r % box) + r // box + c) % size] for c in columns] for r in rows]
    for place in dice.sample(range(size * size), max(0, min(num_empty, size * size))):
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


class SudokuWorkflow(MultiTurnWorkflow):
    """Reward 1 for a solved board, -1 for a move against the rules, which ends the run, else 0.

    The board is the row's column `puzzle`: 81 (or 16) characters with 0 or a dot for empty cells,
    or a list of rows. Without it, one is drawn from `size` (9), `num_empty` (10) and `seed` (the
    row's number). A reply without moves, or with too many, is against the rules.
    """

    is_async = True
    shares_loop = True
    gives_several_samples = True
    usual_args: ClassVar[Mapping[str, JsonValue]] = {"max_steps": 20, "max_moves": 5}
    known_args: ClassVar[frozenset[str] | None] = frozenset(usual_args)

    async def run_async(self) -> list[Experience]:
        """Returns one experience, or several if turns do not continue one another."""
        arguments, board = Arguments(self), self._board()
        max_moves, reward = arguments.positive_int("max_moves"), OPEN
        messages = self._begin(board, max_moves)
        for _ in range(arguments.positive_int("max_steps")):
            (turn,) = await self.model.chat_async(messages)
            if turn.finish_reason is FinishReason.PROMPT_TRUNCATED:
                break
            messages.append(Message(role="assistant", content=turn.response_text))
            reward = played(board, turn.response_text, max_moves)
            if reward != OPEN:
                break
            messages.append(Message(role="user", content=board.drawn()))
        num_turns = sum(message["role"] == "assistant" for message in messages)
        return self.experiences(messages, reward, info={"env_steps": num_turns})

    def _begin(self, board: Sudoku, max_moves: int) -> list[Message]:
        rules = (
            f"You solve a sudoku of {board.size} rows and columns: every row, column and box holds "
            f"the numbers 1 to {board.size} once, and a dot is an empty cell. Each turn you fill 1 "
            f"to {max_moves} cells; a number that the rules forbid ends the game. Think first, "
            "then give one line for each cell, row, column and number, all counted from 1, in this "
            "form:\n<moves>\n1 3 7\n</moves>"
        )
        return [
            Message(role="system", content=self.task.system_prompt or rules),
            Message(role="user", content=board.drawn()),
        ]

    def _board(self) -> Sudoku:
        if PUZZLE in self.task.raw_task:
            return read_board(self.task.raw_task[PUZZLE])
        return random_board(
            size=self._whole("size", SIZE),
            num_empty=self._whole("num_empty", NUM_EMPTY),
            seed=self._whole("seed", self.task.row),
        )

    def _whole(self, column: str, usual: int) -> int:
        value = self.task.raw_task.get(column, usual)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(
                f"taskset {self.task.taskset!r}, {row_name(self.task.row)}: "
                f"its column `{column}` is "
                f"{value!r}, which is no whole number"
            )
        return value


def played(board: Sudoku, reply: str, max_moves: int) -> float:
    """Plays the moves of a reply and returns their reward."""
    moves = moves_in(reply)
    if not 1 <= len(moves) <= max_moves or any(board.play(move) for move in moves):
        return BROKEN
    return SOLVED if board.is_solved else OPEN


def moves_in(reply: str) -> list[Move]:
    """Returns the moves of the last block; empty if one of its lines is not a move."""
    blocks = tagged(reply, "moves", re.IGNORECASE)
    lines = [line for line in blocks[-1].splitlines() if line.strip()] if blocks else []
    matches = [MOVE.fullmatch(line.strip()) for line in lines]
    found = [match for match in matches if match is not None]
    if len(found) < len(lines):
        return []
    return [Move(int(match[1]), int(match[2]), int(match[3])) for match in found]
