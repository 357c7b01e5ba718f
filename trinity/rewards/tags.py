"""Finds tags in responses in time that grows with their length, whatever they repeat.

A regular expression with several `.*?` reads the rest of a text again from each opening tag.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

STRICT = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
LOOSE = r"^\s*<think>.*?</think>\s*<answer>.*?</answer>\s*$"


def tagged(text: str, tag: str, flags: int = 0) -> list[str]:
    """Returns what stands between an opening tag and the first closing one after it, each time.

    It finds what `<tag>(.*?)</tag>` does.
    """
    return list(_tagged(text, tag, flags))


def _tagged(text: str, tag: str, flags: int) -> Iterator[str]:
    begin: int | None = None
    for mark in re.finditer(rf"<(/?){tag}>", text, flags):
        if not mark[1]:
            begin = mark.end() if begin is None else begin
        elif begin is not None:
            yield text[begin : mark.start()]
            begin = None


def final_part(response: str) -> str:
    """Returns what follows the thoughts, which are no answer: empty where they do not end.

    Answer tags in thoughts that do not end mark an answer all the same.
    """
    rest = response.rpartition("</think>")[2]
    return rest if "<answer>" in rest else rest.partition("<think>")[0]


@dataclass(frozen=True, slots=True)
class Layout:
    """Pieces that must follow one another, with anything between them."""

    pieces: tuple[str, ...]
    begins_anywhere: bool = False

    def matches(self, text: str) -> bool:
        """Returns true for a text with all pieces; the first stands at its beginning.

        Each piece is looked for once: its first place leaves the most room for the others.
        """
        place = 0
        for number, piece in enumerate(self.pieces):
            pattern = re.compile(piece, re.MULTILINE)
            is_anchored = number == 0 and not self.begins_anywhere
            found = pattern.match(text) if is_anchored else pattern.search(text, place)
            if found is None:
                return False
            place = found.end()
        return True


LAYOUTS = {
    STRICT: Layout((r"<think>\n", r"\n</think>\n<answer>\n", r"\n</answer>\Z")),
    LOOSE: Layout((r"\s*<think>", r"</think>\s*<answer>", r"</answer>\s*\Z")),
}
"""The patterns of our rewards for whole responses, piece by piece."""
EARLY_LAYOUTS = {
    STRICT: Layout((r"<think>\n", r"\n</think>\n<answer>\n", r"\n</answer>$")),
    r".*?<think>.*?</think>\s*<answer>.*?</answer>\s*$": Layout(
        (r"<think>", r"</think>\s*<answer>", r"</answer>\s*$"), begins_anywhere=True
    ),
}
"""The patterns of Trinity-RFT's rewards, which look at the beginning of a response alone."""
