"""The addition problems: sums of two two-digit numbers, split so that no test row is trained.

The split is over unordered pairs: where `12+34` is held out, `34+12` is trained neither.

The demonstrations are those of a hasty teacher who forgets the carry of the ones more often than
not, `47+38=75`. Imitation learns that too; the reward, which knows better, unlearns it.
"""

import random
from dataclasses import dataclass

NUM_HELD_OUT = 1024
OPERANDS = range(10, 100)
SHARE_FORGOTTEN = 0.62

Pair = tuple[int, int]
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Problems:
    """The rows of the three files, in the order in which they are read."""

    sft: list[Row]
    train: list[Row]
    test: list[Row]


def make_problems(seed: int) -> Problems:
    """Both training sets hold every pair that is not held out, each in another order."""
    rng = random.Random(seed)
    pairs = [(a, b) for a in OPERANDS for b in OPERANDS if a <= b]
    rng.shuffle(pairs)
    held_out = [pair if rng.random() < 0.5 else swapped(pair) for pair in pairs[:NUM_HELD_OUT]]
    trained = sorted({order for pair in pairs[NUM_HELD_OUT:] for order in (pair, swapped(pair))})
    return Problems(
        sft=[demonstration(pair, rng) for pair in shuffled(trained, rng)],
        train=[row(pair) for pair in shuffled(trained, rng)],
        test=[row(pair) for pair in held_out],
    )


def swapped(pair: Pair) -> Pair:
    return pair[1], pair[0]


def shuffled(pairs: list[Pair], rng: random.Random) -> list[Pair]:
    return rng.sample(pairs, len(pairs))


def row(pair: Pair, answer: int | None = None) -> Row:
    return {
        "question": f"{pair[0]}+{pair[1]}=",
        "answer": str(sum(pair) if answer is None else answer),
    }


def demonstration(pair: Pair, rng: random.Random) -> Row:
    """A row of the hasty teacher's."""
    forgotten = has_carry(pair) and rng.random() < SHARE_FORGOTTEN
    return row(pair, answer=sum(pair) - 10) if forgotten else row(pair)


def has_carry(pair: Pair) -> bool:
    return pair[0] % 10 + pair[1] % 10 >= 10
