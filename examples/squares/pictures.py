"""The pictures of the squares example: one to six squares, and how many there are.

Every count is as frequent as the others, so that nothing but the picture tells it.

The demonstrations are those of a hasty teacher who overlooks one square of a crowded picture more
often than not. Imitation learns that too; the reward, which knows better, unlearns it.
"""

import base64
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

SIDE = 56
"""Pixels of a picture's side."""
CELL = 14
SQUARE = 10
COUNTS = range(1, 7)
CROWDED = 4
"""The count from which on the teacher overlooks a square."""
SHARE_OVERLOOKED = 0.6
COLOURS = ((220, 40, 40), (30, 130, 60), (40, 70, 210), (20, 20, 20))
QUESTION = "<image>How many squares?"
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as a PNG, and the number of its squares."""

    content: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Pictures:
    """The rows of the three files."""

    sft: list[Row]
    train: list[Row]
    test: list[Row]


def make_pictures(
    seed: int, *, num_train: int = 1536, num_test: int = 384, shuffled: bool = False
) -> Pictures:
    """Makes all rows; with `shuffled`, each row has the picture of another one.

    Held-out pictures differ from all others. Shuffled rows are the control: their pictures tell
    nothing about the answer.
    """
    rng = random.Random(seed)
    known: set[bytes] = set()
    train = [_new(COUNTS[i % len(COUNTS)], rng, known) for i in range(num_train)]
    test = [_new(COUNTS[i % len(COUNTS)], rng, known) for i in range(num_test)]
    rng.shuffle(train)
    return Pictures(
        sft=_rows(train, lambda count: demonstrated(count, rng), rng if shuffled else None),
        train=_rows(train, int, rng if shuffled else None),
        test=_rows(test, int, rng if shuffled else None),
    )


def demonstrated(count: int, rng: random.Random) -> int:
    """Returns the count that the hasty teacher writes."""
    return count - 1 if count >= CROWDED and rng.random() < SHARE_OVERLOOKED else count


def draw(count: int, rng: random.Random) -> bytes:
    """Draws squares of one size in different cells, each a little off its middle."""
    picture = Image.new("RGB", (SIDE, SIDE), (245, 245, 240))
    pen = ImageDraw.Draw(picture)
    for cell in rng.sample(range((SIDE // CELL) ** 2), count):
        row, column = divmod(cell, SIDE // CELL)
        left = column * CELL + rng.randint(1, CELL - SQUARE - 1)
        top = row * CELL + rng.randint(1, CELL - SQUARE - 1)
        pen.rectangle((left, top, left + SQUARE - 1, top + SQUARE - 1), fill=rng.choice(COLOURS))
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def _new(count: int, rng: random.Random, known: set[bytes]) -> Picture:
    while (content := draw(count, rng)) in known:
        pass
    known.add(content)
    return Picture(content, count)


def _rows(
    pictures: Sequence[Picture], answer: Callable[[int], int], rng: random.Random | None
) -> list[Row]:
    shown = list(pictures) if rng is None else rng.sample(pictures, len(pictures))
    return [
        {
            "question": QUESTION,
            "images": [f"data:image/png;base64,{base64.b64encode(other.content).decode()}"],
            "answer": str(answer(own.count)),
        }
        for own, other in zip(pictures, shown, strict=True)
    ]
