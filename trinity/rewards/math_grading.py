"""Compares two answers mathematically, within a time limit.

math-verify limits itself with signals, which only a process's main thread may use, and some
expressions keep Python inside one long C call that no signal interrupts. It therefore runs in a
separate process (`math_grader`), which is killed when it does not answer.
"""

import atexit
import json
import logging
import re
import select
import subprocess
import threading
from decimal import Decimal, InvalidOperation

from trinity.interpreter import module_command

logger = logging.getLogger(__name__)


START_SECONDS = 60.0
GRADE_SECONDS = 15.0
MAX_CHARACTERS = 4000
"""Only the end of a longer response is graded, because answers are at the end."""
_END = r"(?:[eE][-+]?\d+)?"
_THOUSANDS = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+"
NUMBER = re.compile(rf"(?:[-+] ?)?(?:(?:\d+|{_THOUSANDS})(?:\.\d*)?|\.\d+){_END}")
"""Commas and blanks only separate thousands: any other comma may separate list items."""
_PLAIN = rf"(?:[-+] ?)?(?:\d+(?:\.\d*)?|\.\d+){_END}"
NUMBERS = re.compile(rf"{_PLAIN}(?:\s*,\s*{_PLAIN})+")
_BOX = "\\boxed{"


def is_equivalent(response: str, truth: str) -> bool:
    """Returns true if `response` gives the answer `truth`; a timeout counts as wrong."""
    plain, expected = response.strip(), truth.strip()
    if plain == expected:
        return True
    numbers = _number(plain), _number(expected)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return bool(plain) and GRADER.grade(_as_list(plain[-MAX_CHARACTERS:]), expected)


def _number(text: str) -> Decimal | None:
    """Parses a plain number; most answers are plain numbers, which need no grading process."""
    bare = text.strip("$").strip()
    if not NUMBER.fullmatch(bare):
        return None
    try:
        return Decimal(bare.replace(",", "").replace(" ", ""))
    except InvalidOperation:  # the exponent is too large
        return None


def _as_list(text: str) -> str:
    """Puts bare numbers in dollar signs, without which the parser takes only the last of them."""
    return f"${text}$" if NUMBERS.fullmatch(text) else text


class GraderProcess:
    """The grading process: started on first use, and replaced after it had to be killed."""

    def __init__(self, grade_seconds: float = GRADE_SECONDS) -> None:
        self._grade_seconds = grade_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def grade(self, response: str, truth: str) -> bool:
        """Returns true if the two agree; False when there is no verdict in time."""
        with self._lock:
            try:
                return self._ask(self._running(), response, truth)
            except (OSError, TimeoutError) as error:
                logger.warning("an answer could not be graded", extra={"reason": str(error)})
                self._kill()
                return False

    def stop_process(self) -> None:
        """Ends the process."""
        with self._lock:
            self._kill()

    def _ask(self, process: subprocess.Popen[bytes], response: str, truth: str) -> bool:
        assert process.stdin is not None
        process.stdin.write(json.dumps([response, truth]).encode() + b"\n")
        process.stdin.flush()
        return self._line(process, self._grade_seconds) == b"1\n"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                module_command("trinity.rewards.math_grader"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._line(self._process, START_SECONDS)
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"no verdict within {seconds} s")
        line = process.stdout.readline()
        if not line:
            raise OSError("the grading process ended")
        return line

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()


GRADER = GraderProcess()
atexit.register(GRADER.stop_process)


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{}` that is closed; None if there is none."""
    start = text.rfind(_BOX)
    while start >= 0:
        inside = _balanced(text[start + len(_BOX) :])
        if inside is not None:
            return inside
        start = text.rfind(_BOX, 0, start)
    return None


def _balanced(text: str) -> str | None:
    """Returns the text up to the brace that closes the one before it."""
    depth = 1
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:index]
    return None
