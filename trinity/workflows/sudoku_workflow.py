"""The model solves a sudoku, a few cells per turn."""

import re
from collections.abc import Mapping
from typing import ClassVar

from trinity.errors import UserError
from trinity.types import Experience, FinishReason, JsonValue
from trinity.workflows.arguments import Arguments
from trinity.workflows.messages import Message
from trinity.workflows.multi_turn import MultiTurnWorkflow
from trinity.workflows.sudoku import Move, Sudoku, random_board, read_board

PUZZLE = "puzzle"
SIZE, NUM_EMPTY = 9, 10
SOLVED, OPEN, BROKEN = 1.0, 0.0, -1.0
MOVES = re.compile(r"<moves>(.*?)</moves>", re.DOTALL | re.IGNORECASE)
MOVE = re.compile(r"(\d+)\D+(\d+)\D+(\d+)\D*")


class SudokuWorkflow(MultiTurnWorkflow):
    """Reward 1 for a solved board, -1 for a move against the rules, which ends the run, else 0.

    The board is the row's column `puzzle`: 81 (or 16) characters with 0 or a dot for empty cells,
    or a list of rows. Without it, one is drawn from `size` (9), `num_empty` (10) and `seed` (the
    row's number). A reply without moves, or with too many, is against the rules.
    """

    is_async = True
    usual_args: ClassVar[Mapping[str, JsonValue]] = {"max_steps": 20, "max_moves": 5}
    known_args: ClassVar[frozenset[str] | None] = frozenset(usual_args)

    async def run_async(self) -> list[Experience]:
        """Returns one experience, or several if turns do not continue one another."""
        arguments, board = Arguments(self), self._board()
        max_moves, reward = arguments.count("max_moves"), OPEN
        messages = self._begin(board, max_moves)
        for _ in range(arguments.count("max_steps")):
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
            seed=self._whole("seed", self.task.index),
        )

    def _whole(self, column: str, usual: int) -> int:
        value = self.task.raw_task.get(column, usual)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(
                f"taskset {self.task.taskset!r}, row {self.task.index}: its column `{column}` is "
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
    """Returns the moves of the last block; none if one of its lines is not a move."""
    blocks = MOVES.findall(reply)
    lines = [line for line in blocks[-1].splitlines() if line.strip()] if blocks else []
    matches = [MOVE.fullmatch(line.strip()) for line in lines]
    found = [match for match in matches if match is not None]
    if len(found) < len(lines):
        return []
    return [Move(int(match[1]), int(match[2]), int(match[3])) for match in found]
