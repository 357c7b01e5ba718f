"""Compares two answers mathematically, within a time limit.

A limit within Python needs signals, which only a process's main thread may use, and some
expressions keep Python inside one long C call that no signal interrupts. math-verify therefore runs
in a separate process (`math_grader`), which limits its own processor seconds; by the clock it has
longer, since a busy machine makes no answer wrong.
"""

import atexit
import json
import logging
import queue
import select
import subprocess
import threading

from trinity.rewards.math_answers import is_prose, number_of
from trinity.rewards.math_prose import last_word
from trinity.runtime.child_process import module_command

logger = logging.getLogger(__name__)


START_SECONDS = 300.0
"""By the clock, like `GRADE_SECONDS`: the grader gives up after fewer processor seconds."""
GRADE_SECONDS = 90.0
MAX_PROCESSES = 4
MAX_CHARACTERS = 4000
"""Only the end of a longer response is graded, because answers are at the end."""
MAX_BARE_CHARACTERS = 200
"""A longer response is no bare answer."""
_BOX = "\\boxed{"


def is_right_answer(answer: str, truth: str) -> bool:
    r"""Returns true if `answer`, which stands in `\boxed{}` or in tags, is the truth as a whole.

    What cannot be graded in time counts as wrong.
    """
    given, expected = answer.strip(), truth.strip()
    if not given or len(given) > MAX_CHARACTERS:
        return False
    numbers = number_of(given), number_of(expected)
    if given == expected or None not in numbers:
        return given == expected or numbers[0] == numbers[1]
    return GRADERS.grade(given, expected, is_whole=True)


def is_equivalent(response: str, truth: str) -> bool:
    """Returns true if a response, in which the answer is not marked, gives the answer `truth`.

    In prose the last formula or number counts, or all that a last line `The answer is ...` names;
    without prose all of it is the answer.
    """
    boxed = last_boxed(response)
    if boxed is not None:
        return is_right_answer(boxed, truth)
    text = response.strip()[-MAX_CHARACTERS:]
    if len(text) <= MAX_BARE_CHARACTERS and is_right_answer(text, truth):
        return True
    if not is_prose(text):
        return False
    named = last_word(text)
    if named is not None and is_right_answer(named, truth):
        return True
    return GRADERS.grade(text, truth.strip(), is_whole=False)


class GraderProcess:
    """The grading process: started on first use, and replaced after it had to be killed."""

    def __init__(self, grade_seconds: float = GRADE_SECONDS) -> None:
        self._grade_seconds = grade_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def grade(self, response: str, truth: str, *, is_whole: bool = True) -> bool:
        """Returns true if the two agree; False when there is no verdict in time.

        `is_whole`: the response is an answer; else the answer is looked for in it.
        """
        with self._lock:
            try:
                return self._ask(self._running(), [response, truth, is_whole])
            except (OSError, TimeoutError) as error:
                logger.warning("an answer could not be graded", extra={"reason": str(error)})
                self._kill()
                return False

    def stop_process(self) -> None:
        """Ends the process."""
        with self._lock:
            self._kill()

    def _ask(self, process: subprocess.Popen[bytes], question: list[str | bool]) -> bool:
        assert process.stdin is not None
        process.stdin.write(json.dumps(question).encode() + b"\n")
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


class GraderPool:
    """Several grading processes, so that one slow expression does not hold the others up.

    The one that was free last is asked first: without slow expressions one process is enough.
    """

    def __init__(self, num_processes: int = MAX_PROCESSES) -> None:
        self._graders = [GraderProcess() for _ in range(num_processes)]
        self._free: queue.LifoQueue[GraderProcess] = queue.LifoQueue()
        for grader in self._graders:
            self._free.put(grader)

    def grade(self, response: str, truth: str, *, is_whole: bool) -> bool:
        """Returns the verdict of a process that is free, for which it waits."""
        grader = self._free.get()
        try:
            return grader.grade(response, truth, is_whole=is_whole)
        finally:
            self._free.put(grader)

    def stop_processes(self) -> None:
        """Ends the processes."""
        for grader in self._graders:
            grader.stop_process()


GRADERS = GraderPool()
atexit.register(GRADERS.stop_processes)


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{}` that is closed; None if there is none.

    Of boxes in one another it is the outer one: what stands beside the inner one counts, too. It
    reads the text once, however many boxes are left open.
    """
    opened: list[int | None] = []
    last: slice | None = None
    for place, character in enumerate(text):
        if character == "{":
            begins_box = text.startswith(_BOX, place + 1 - len(_BOX), place + 1)
            opened.append(place + 1 if begins_box else None)
        elif character == "}" and opened:
            begin = opened.pop()
            if begin is not None:
                last = slice(begin, place)
    return None if last is None else text[last]
