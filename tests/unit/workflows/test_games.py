"""Workflows that play: a frozen lake and a sudoku."""

import random
from typing import Any

import pytest

from tests.unit.subtests import as_subtests
from tests.unit.workflows.scripted import play
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.types import JsonObject, JsonValue
from trinity.workflows.frozen_lake_workflow import (
    FrozenLake,
    distance,
    parse_move,
    random_rows,
)
from trinity.workflows.sudoku_workflow import Move, random_board, read_board

LAKE: JsonObject = {"desc": ["SF", "HG"]}
BOARD = "12.4341221434321"


def go(*moves: str) -> list[str]:
    return [f"so I go <action>{move}</action>" for move in moves]


@pytest.mark.parametrize(
    ("answers", "reward", "moves", "turns"),
    [
        (go("right", "down"), 1.0, 2, 2),
        (go("Down"), 0.0, 1, 1),
        (["I wait", *go("right", "jump", "down")], 1.0, 2, 4),
        (go("left", "left", "left"), 0.0, 3, 3),
        (["no", "no", "no", "no"], 0.0, 0, 4),
    ],
)
async def test_who_reaches_the_goal_of_the_lake_is_rewarded(
    answers: list[str], reward: float, moves: int, turns: int
) -> None:
    args: JsonObject = {**LAKE, "env_max_steps": 3, "agent_max_steps": 4}
    found = await play("frozen_lake_workflow", {}, answers, workflow_args=args)
    (sample,) = found.experiences
    assert sample.reward == reward
    assert sample.metrics == {"env_steps": moves, "agent_steps": turns}
    assert len(found.engine.prompts) == turns


@pytest.mark.parametrize("desc", ["SF\nHG", "\n  SF\n  HG\n"])
async def test_a_lake_may_be_a_text_of_lines(desc: str) -> None:
    args: JsonObject = {"desc": desc}
    found = await play("frozen_lake_workflow", {}, go("right", "down"), workflow_args=args)
    assert found.engine.prompts[0].endswith("<user>P F\nH G\n<assistant>")


async def test_each_turn_shows_where_the_player_is() -> None:
    found = await play("frozen_lake_workflow", {}, go("right", "down"), workflow_args=LAKE)
    assert found.engine.prompts[0].endswith("<user>P F\nH G\n<assistant>")
    assert found.engine.prompts[1].endswith("<user>F P\nH G\n<assistant>")


async def test_a_row_draws_its_lake_and_the_same_row_the_same() -> None:
    async def first(row: JsonObject) -> str:
        found = await play("frozen_lake_workflow", row, lambda _: "no")
        return str(found.engine.prompts[0])

    row: JsonObject = {"size": 5, "p": 0.7, "seed": 3}
    assert await first(row) == await first(row) != await first({**row, "seed": 4})


@as_subtests("seed", range(20))
def test_every_lake_can_be_crossed_in_time(seed: int) -> None:
    rows = random_rows(size=4, ice_share=0.6, seed=seed, max_steps=5)
    lake = FrozenLake.from_rows(rows)
    assert 1 <= distance(rows, lake.position) <= 5


@pytest.mark.parametrize(
    ("direction", "reached"),
    [
        ("right", {(1, 2), (0, 1), (2, 1)}),
        ("up", {(0, 1), (1, 0), (1, 2)}),
        ("left", {(1, 0), (0, 1), (2, 1)}),
        ("down", {(2, 1), (1, 0), (1, 2)}),
    ],
)
def test_slippery_ice_leads_aside_but_never_back(
    direction: str, reached: set[tuple[int, int]]
) -> None:
    places = set()
    for seed in range(30):
        lake = FrozenLake.from_rows(["SFF", "FFF", "FFG"], random.Random(seed))
        lake.position = (1, 1)
        lake.move(direction)
        places.add(lake.position)
    assert places == reached


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        (["SG", "FF"], 1),
        (["SFF", "HHF", "GFF"], 6),
        (["SH", "HG"], -1),
    ],
)
def test_the_way_to_the_goal_leads_around_the_holes(rows: list[str], steps: int) -> None:
    assert distance(rows, (0, 0)) == steps


def test_the_share_of_ice_and_the_number_of_steps_bound_what_is_drawn() -> None:
    for seed in range(5):
        solid = random_rows(size=2, ice_share=1.0, seed=seed, max_steps=1)
        assert sorted("".join(solid)) == ["F", "F", "G", "S"]
        assert "".join(solid) not in ("SFFG", "GFFS", "FSGF", "FGSF"), "they are neighbours"
        holes = random_rows(size=3, ice_share=0.0, seed=seed, max_steps=9)
        assert sorted("".join(holes)) == ["G", *"HHHHHHH", "S"]


@pytest.mark.parametrize("args", [{"is_slippery": True}, {}])
@pytest.mark.parametrize("own", ["Go.", None])
async def test_the_rules_of_a_lake_tell_of_its_ice_unless_the_taskset_has_its_own(
    args: JsonObject, own: str | None
) -> None:
    changes: dict[str, Any] = {"columns": FormatConfig(system_prompt=own), "workflow_args": args}
    found = await play("frozen_lake_workflow", {}, lambda _: "no", **changes)
    system = found.engine.prompts[0].partition("<user>")[0]
    assert system.startswith("<system>Go." if own else "<system>You cross a frozen lake")
    assert ("The ice is slippery" in system) is (bool(args) and own is None)


@pytest.mark.parametrize(
    ("reply", "move"),
    [
        ("left", None),
        ("<action>left</action> or <action>up</action>, no: <action>Down</action>", "down"),
        ("<action>left</action>, then <action>jump</action>", None),
    ],
)
def test_the_last_move_that_a_reply_names_counts(reply: str, move: str | None) -> None:
    assert parse_move(reply) == move


@pytest.mark.parametrize(
    ("row", "args", "said"),
    [
        ({}, {"desc": ["SF", "HH"]}, "is no frozen lake"),
        ({}, {"desc": ["SX", "FG"]}, "is no frozen lake"),
        ({}, {"desc": ["SFF", "FFG"]}, "is no frozen lake"),
        ({}, {"desc": ["SS", "FG"]}, "is no frozen lake"),
        ({}, {"desc": ""}, "is no frozen lake"),
        ({}, {"desc": {"rows": ["SF", "HG"]}}, "desc is .*: give the rows of a lake"),
        ({"size": "big"}, {}, "its column `size` is 'big'"),
        (
            {"size": 2, "p": 1.0},
            {"env_max_steps": 2, "desc": None, "is_slippery": 1},
            "is_slippery",
        ),
        ({}, {"env_max_steps": 0}, "env_max_steps is 0: give a whole number"),
        ({}, {"is_slippery": "yes"}, "is_slippery is 'yes': give true or false"),
        ({}, {"max_steps": 3}, "knows no workflow_args max_steps"),
    ],
)
async def test_a_lake_that_cannot_be_is_named(row: JsonObject, args: JsonObject, said: str) -> None:
    with pytest.raises(UserError, match=said):
        await play("frozen_lake_workflow", row, lambda _: "no", workflow_args=args)


def test_a_lake_that_nobody_can_cross_is_not_looked_for_forever() -> None:
    with pytest.raises(UserError, match=r"no lake of size 2 .* at most 0 steps"):
        random_rows(size=2, ice_share=0.5, seed=1, max_steps=0)


def fill(*moves: str) -> str:
    lines = "\n".join(moves)
    return f"I think\n<moves>\n{lines}\n</moves>"


@pytest.mark.parametrize(
    ("puzzle", "answers", "reward"),
    [
        (BOARD, [fill("1 3 3")], 1.0),
        (BOARD, [fill("1, 3, 3")], 1.0),
        (BOARD, [fill("1 3 4")], -1.0),
        (BOARD, [fill("1 1 1")], -1.0),
        (BOARD, [fill("9 9 9")], -1.0),
        (BOARD, ["I give up"], -1.0),
        (BOARD, [fill("one three three")], -1.0),
        (BOARD, [fill("1 3 3", "and so on")], -1.0),
        (BOARD, ["I try " + fill("1 1 1") + " or " + fill("1 3 3")], 1.0),
        ("." * 16, [fill("1 1 1", "1 2 2", "1 3 3", "1 4 4", "2 1 3", "2 2 4")], -1.0),
        ("." * 16, [fill("1 1 1"), fill("1 2 2"), fill("1 3 3")], 0.0),
        (
            [[1, 2, 0, 4], [3, 4, 0, 2], [2, 1, 4, 3], [4, 3, 2, 1]],
            [fill("1 3 3"), fill("2 3 1")],
            1,
        ),
    ],
)
async def test_a_sudoku_is_judged_by_its_rules(
    puzzle: str, answers: list[str], reward: float
) -> None:
    found = await play(
        "sudoku_workflow", {"puzzle": puzzle}, answers, workflow_args={"max_steps": 3}
    )
    (sample,) = found.experiences
    assert sample.reward == reward
    assert sample.metrics == {"env_steps": len(answers)}


async def test_one_step_and_one_move_may_be_all() -> None:
    args: JsonObject = {"max_steps": 1, "max_moves": 1}
    found = await play("sudoku_workflow", {"puzzle": BOARD}, [fill("1 3 3")], workflow_args=args)
    assert found.experiences[0].reward == 1.0
    with pytest.raises(UserError, match="max_moves is 0: give a whole number from 1 on"):
        await play("sudoku_workflow", {}, ["x"], workflow_args={"max_moves": 0})


def solver(prompt: str) -> str:
    """Fills the first cell of the drawn board that only one number fits."""
    board = read_board(prompt.rsplit("<user>", 1)[1].split("<assistant>")[0].replace("\n", " "))
    for place in range(81):
        row, column = place // 9 + 1, place % 9 + 1
        fitting = [
            number
            for number in range(1, 10)
            if not read_board([list(one) for one in board.cells]).play(Move(row, column, number))
        ]
        if len(fitting) == 1:
            return fill(f"{row} {column} {fitting[0]}")
    return "none"


async def test_a_board_is_drawn_where_the_row_has_none_and_can_be_solved() -> None:
    found = await play("sudoku_workflow", {"num_empty": 4, "seed": 5}, solver)
    (sample,) = found.experiences
    assert (sample.reward, sample.metrics) == (1.0, {"env_steps": 4.0})


@pytest.mark.parametrize("seed", range(5))
def test_drawn_boards_keep_to_the_rules(seed: int) -> None:
    for size in (4, 9):
        board = random_board(size=size, num_empty=6, seed=seed)
        again = read_board([list(row) for row in board.cells])
        assert again.cells == board.cells
        assert sum(row.count(0) for row in board.cells) == 6


@pytest.mark.parametrize(
    "puzzle",
    [
        "123",
        ".",
        "." * 9,
        "x" + "." * 15,
        "5" + "." * 15,
        {"a": 1},
        [[1, 2, None, 4], [3, 4, 0, 2], [2, 1, 4, 3], [4, 3, 2, 1]],
    ],
)
def test_what_is_no_sudoku_is_named(puzzle: JsonValue) -> None:
    with pytest.raises(
        UserError, match=r"the puzzle .* is no sudoku: give 81 \(or 16\) characters"
    ):
        read_board(puzzle)


def test_a_number_twice_in_a_box_is_named() -> None:
    with pytest.raises(UserError, match="has 1 twice in a row, column or box"):
        read_board("1....1" + "." * 10)


@pytest.mark.parametrize("size", [-4, 0, 1, 5])
def test_a_size_without_boxes_is_named(size: int) -> None:
    with pytest.raises(UserError, match=f"size {size} has no boxes: give 4 or 9"):
        random_board(size=size, num_empty=1, seed=0)


@pytest.mark.parametrize(("num_empty", "found"), [(-1, 0), (0, 0), (15, 15), (16, 16), (99, 16)])
def test_no_more_cells_are_empty_than_there_are(num_empty: int, found: int) -> None:
    board = random_board(size=4, num_empty=num_empty, seed=0)
    assert sum(row.count(0) for row in board.cells) == found
    assert board.is_solved is (found == 0)


@pytest.mark.parametrize("value", ["4", 4.5, True])
async def test_a_size_that_is_no_whole_number_is_named(value: JsonValue) -> None:
    with pytest.raises(UserError, match=r"its column `size` is .*, which is no whole number"):
        await play("sudoku_workflow", {"size": value}, ["x"])


@pytest.mark.parametrize("own", ["Be quick.", None])
async def test_the_rules_of_a_sudoku_are_told_unless_the_taskset_has_its_own(
    own: str | None,
) -> None:
    form = FormatConfig(system_prompt=own)
    found = await play("sudoku_workflow", {"size": 4}, ["x"], columns=form)
    rules = "You solve a sudoku of 4 rows and columns"
    assert found.engine.prompts[0].startswith(f"<system>{own or rules}")
