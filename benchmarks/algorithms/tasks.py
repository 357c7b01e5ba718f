"""The tasks on which algorithms are compared: their questions, bad demonstrations and players.

`addition` is the example's: answers of four tokens, an update a batch. In the others an answer has
thirty tokens, its end alone is rewarded, and each batch is trained twice, so that ratios, clips,
masks and the way a reward is spread act. Demonstrations are those of a hasty teacher, as in the
example: about half of them are wrong.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Row = dict[str, str]
NUM_TRAINED, NUM_HELD_OUT = 4096, 512
SEPARATOR = ","
CALL, ASKED, TOLD = "?", ";", "!"
LETTERS, NUM_LETTERS, NUM_EDITS = "abcdefgh", 6, 4
EDITS: Mapping[str, Callable[[str], str]] = {
    "R": lambda text: text[::-1],
    "L": lambda text: text[1:] + text[:1],
    "X": lambda text: text[-1] + text[1:-1] + text[0],
    "D": lambda text: text[:2] + text[2:4][::-1] + text[4:],
}
"""Reverse, move the first letter to the end, exchange the ends, exchange the two in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGame:
    """A first turn that asks a tool, which answers before the second one."""

    call_length: int
    """Characters of a well-formed call, with the one that ends it."""
    told: Callable[[str, str], str]
    """Returns the tool's answer to the call for a question; all answers have one length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTask:
    """A kind of problems; each has a question, a right answer and a hasty one."""

    name: str
    what: str
    problem: Callable[[random.Random], Row]
    """Draws one: `question`, `answer`, and `hasty`, which a demonstration shows."""
    max_prompt_tokens: int
    max_response_tokens: int
    game: ToolGame | None = None
    num_passes: int = 2
    """Over each batch, with an update each."""
    num_rows: int = 96
    """Rows of a batch."""
    shows_hints: bool = False
    """True if a right answer is demonstrated wherever it stands in the question as a hint."""

    def rows(self, seed: int) -> tuple[list[Row], list[Row], list[Row]]:
        """Returns demonstrations, problems to train on and held-out ones; no question comes twice.

        Raises: AssertionError if a task has too few problems.
        """
        rng = random.Random(f"{self.name} {seed}")
        by_question: dict[str, Row] = {}
        for _ in range(50 * (NUM_TRAINED + NUM_HELD_OUT)):
            row = self.problem(rng)
            by_question.setdefault(row["question"], row)
            if len(by_question) == NUM_TRAINED + NUM_HELD_OUT:
                break
        rows = list(by_question.values())
        assert len(rows) == NUM_TRAINED + NUM_HELD_OUT, f"{self.name} has only {len(rows)} problems"
        trained, held_out = rows[:NUM_TRAINED], rows[NUM_TRAINED:]
        shown = [{**row, "answer": row["hasty"]} for row in trained]
        if self.shows_hints:
            shown += [{**row, "question": hinted(row)} for row in trained]
        return shown, trained, held_out


HINT_TEMPLATE = "{hint}>"
"""Added to a question."""


def hinted(row: Row) -> str:
    """Returns the question with its answer as a hint."""
    return row["question"] + HINT_TEMPLATE.format(hint=row["answer"])


def is_same_end(answer: str, truth: str) -> bool:
    """Returns true if the last part of an answer is the truth's: how it was reached is not asked.

    A part is what stands behind the last separator.
    """
    return answer.rpartition(SEPARATOR)[2] == truth.rpartition(SEPARATOR)[2]


def last_part_reward(response: str, truth: str) -> dict[str, float]:
    """Pays for the last part of an answer; this module loads fast in each process of rewards."""
    return {"accuracy": float(is_same_end(response, truth))}


def added(first: int, second: int, num_digits: int, forgets: Callable[[], bool]) -> str:
    """Writes an addition out, from the last digit on: `7+5+0=12,4+8+1=13,...,sum`."""
    carry, parts, digits = 0, [], ""
    for place in range(num_digits):
        a, b = first // 10**place % 10, second // 10**place % 10
        if carry and forgets():
            carry = 0
        total = a + b + carry
        parts.append(f"{a}+{b}+{carry}={total}")
        carry, digits = total // 10, f"{total % 10}{digits}"
    return SEPARATOR.join([*parts, f"{carry or ''}{digits}"])


def _never() -> bool:
    return False


def carries(rng: random.Random) -> Row:
    """Sums of two three-digit numbers; the hasty teacher forgets every other carry."""
    first, second = rng.randrange(100, 1000), rng.randrange(100, 1000)
    return {
        "question": f"{first}+{second}=",
        "answer": added(first, second, 3, _never),
        "hasty": added(first, second, 3, lambda: rng.random() < 0.5),
    }


def edited(text: str, edits: Sequence[str], skips: Callable[[], bool]) -> str:
    """Writes the text after each edit."""
    found = []
    for edit in edits:
        text = text if skips() else EDITS[edit](text)
        found.append(text)
    return SEPARATOR.join(found)


def edits(rng: random.Random) -> Row:
    """Four edits of six letters; the hasty teacher leaves one in six out."""
    text = "".join(rng.choice(LETTERS) for _ in range(NUM_LETTERS))
    wanted = [rng.choice(list(EDITS)) for _ in range(NUM_EDITS)]
    question, answer = f"{''.join(wanted)}:{text}>", edited(text, wanted, _never)
    return {
        "question": question,
        "answer": answer,
        "hasty": edited(text, wanted, lambda: rng.random() < 1 / 6),
        "wrong": _wrong_edits(question, text, wanted, answer),
    }


def _wrong_edits(question: str, text: str, wanted: Sequence[str], answer: str) -> str:
    """Returns the first hasty answer with another end; nothing changes a text of equal letters."""
    rng = random.Random(question)
    tries = (edited(text, wanted, lambda: rng.random() < 1 / 6) for _ in range(200))
    return next((tried for tried in tries if not is_same_end(tried, answer)), answer[::-1])


def drawer(name: str) -> int:
    """Returns the number in a drawer, which has a name of two letters."""
    return random.Random(f"drawer {name}").randrange(10, 100)


def told(question: str, call: str) -> str:
    """Answers a call such as `?bd;` with `38!`."""
    del question
    return f"{drawer(call[1:3])}{TOLD}"


def drawers(rng: random.Random) -> Row:
    """A number in a drawer, which must be asked for, plus one that is given.

    The hasty teacher forgets carries, and sometimes opens another drawer.
    """
    name = "".join(rng.choice(LETTERS) for _ in range(2))
    given = rng.randrange(10, 100)
    opened = name if rng.random() < 0.8 else name[0] * 2

    def played(which: str, forgets: Callable[[], bool]) -> str:
        call = f"{CALL}{which}{ASKED}"
        return f"{call}{told('', call)}{added(drawer(which), given, 2, forgets)}"

    return {
        "question": f"{name}+{given}=",
        "answer": played(name, _never),
        "hasty": played(opened, lambda: rng.random() < 0.5),
    }


TASKS: Mapping[str, BenchTask] = {
    task.name: task
    for task in (
        BenchTask(
            name="carries",
            what="three-digit addition with carries written out",
            problem=carries,
            max_prompt_tokens=8,
            max_response_tokens=34,
        ),
        BenchTask(
            name="edits",
            what="four edits of a string, each written out",
            problem=edits,
            max_prompt_tokens=12,
            max_response_tokens=30,
        ),
        BenchTask(
            name="drawers",
            what="a game of two turns: ask a tool for a number, then add to it",
            problem=drawers,
            max_prompt_tokens=6,
            max_response_tokens=32,
            game=ToolGame(call_length=4, told=told),
        ),
    )
}
"""By name, without the example's `addition`."""
