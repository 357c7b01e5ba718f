"""Compares two answers mathematically, within a time limit.

A limit within Python needs signals, which only a process's main thread may use, and some
expressions keep Python inside one long C call that no signal interrupts. math-verify therefore runs
in a separate process (`math_grader`), which limits its own processor seconds; by the clock it has
longer, since a busy machine makes no answer wrong.
"""

import asyncio
import atexit
import functools
import logging
import re
import threading
from contextlib import suppress
from dataclasses import dataclass

from trinity.rewards.math_forms import number_of
from trinity.rewards.math_prose import (
    has_other_answers,
    has_words,
    is_hedged,
    is_unchanged,
    last_word,
)
from trinity.rewards.tags import final_part, tagged
from trinity.runtime.process.worker import Message, Worker, WorkerFailed

logger = logging.getLogger(__name__)


START_SECONDS = 300.0
"""By the clock, like `GRADE_SECONDS`: the grader gives up after fewer processor seconds."""
GRADE_SECONDS = 90.0
STOP_SECONDS = 5.0
MAX_PROCESSES = 4
MAX_CHARACTERS = 4000
"""Only the end of a longer response is graded, because answers are at the end."""
MAX_BARE_CHARACTERS = 200
"""A longer response is no bare answer."""
_BOX = "\\boxed{"
_JOINT = re.compile(
    r"[\s$,;.()\[\]\\/|*]{0,20}(?:(?:or|and|oder|und|ou|et|o|u|y)(?![a-z])|或者?|和|または|か|、)?[\s$()\[\]\\*]{0,20}"
)
"""Stands between boxes that give a list, or a choice."""


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
    r"""Returns true if a response gives the answer `truth`.

    Reasoning is ignored. The text in answer tags may be prose, but must name one answer:
    `64 or 65`, or different tags or boxes, do not count. Without tags the last box counts, or
    adjacent boxes at the end, else the last formula or number, or all that a last line `The answer
    is ...` names. Without prose, the whole response is the answer.
    """
    text = final_part(response)
    marked = {answer.strip() for answer in tagged(text, "answer")}
    if len(marked) > 1:
        return False
    is_marked = bool(marked)
    return _is_given(marked.pop() if is_marked else text.strip(), truth.strip(), is_marked)


def _is_given(text: str, truth: str, is_marked: bool) -> bool:
    end = text[-MAX_CHARACTERS:].strip("*`# \n")
    if (is_marked or len(text) <= MAX_BARE_CHARACTERS) and is_right_answer(end, truth):
        return True
    if (box := boxed_answer(text)) is not None:
        is_only = not is_marked or (box.is_only and not is_hedged(end))
        return is_only and is_right_answer(box.content, truth) and is_unchanged(text, box.place)
    if not has_words(end) or (is_marked and has_other_answers(end)):
        return False
    named = last_word(end)
    if named is not None and any(
        is_right_answer(n, truth) for n in {named, named.replace("$", "")}
    ):
        return True
    if is_marked and is_hedged(end):
        return False
    return GRADERS.grade(end, truth, is_whole=False)


class GraderPool:
    """Several grading processes, so that one slow expression does not hold the others up.

    They are started when they are needed and killed when they give no verdict. The most recently
    used free one is taken first: without slow expressions one is enough.
    """

    def __init__(
        self, num_processes: int = MAX_PROCESSES, grade_seconds: float = GRADE_SECONDS
    ) -> None:
        self._grade_seconds = grade_seconds
        self._turn = asyncio.Semaphore(num_processes)
        self._idle: list[Worker] = []

    def grade(self, response: str, truth: str, *, is_whole: bool = True) -> bool:
        """Returns true if the two agree; False when there is no verdict in time.

        `is_whole`: the response is an answer; else the answer is looked for in it.
        """
        question = {"response": response, "truth": truth, "is_whole": is_whole}
        return asyncio.run_coroutine_threadsafe(self._grade(question), _loop()).result()

    def stop_processes(self) -> None:
        """Ends the processes that are idle."""
        if self._idle:
            stopping = asyncio.run_coroutine_threadsafe(self._stop_idle(), _loop())
            with suppress(TimeoutError):  # a fork of this process lacks their threads
                stopping.result(STOP_SECONDS)

    async def _grade(self, question: Message) -> bool:
        async with self._turn:
            try:
                worker = await self._take()
                verdict = await self._ask(worker, question, self._grade_seconds)
            except (OSError, WorkerFailed) as error:
                logger.warning("an answer could not be graded", extra={"reason": str(error)})
                return False
            self._idle.append(worker)
            return bool(verdict["is_right"])

    async def _take(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.returncode is None:
                return worker
            await worker.kill()
        worker = await Worker.start("trinity.rewards.math_grader")
        await self._ask(worker, {}, START_SECONDS)
        return worker

    async def _ask(self, worker: Worker, question: Message, seconds: float) -> Message:
        """Returns the answer of a process, which is killed without one."""
        try:
            worker.ask(question)
            return await worker.read(seconds)
        except BaseException:
            await worker.kill()
            raise

    async def _stop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().kill()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Returns the loop of the processes, in a thread that never ends: they would end with it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="graders", daemon=True).start()
    return loop


GRADERS = GraderPool()
atexit.register(GRADERS.stop_processes)


@dataclass(frozen=True, slots=True)
class Boxed:
    """The answer in boxes, where it stands, and whether there is no other box."""

    content: str
    place: slice
    is_only: bool


def boxed_answer(text: str) -> Boxed | None:
    r"""Returns the answer of the last `\boxed{}`, or of all that stand together there.

    `\boxed{1} and \boxed{2}` is a list, and no choice of two answers.
    """
    boxes = _boxes(text)
    if not boxes:
        return None
    joined = [boxes.pop()]
    while boxes and _JOINT.fullmatch(text[boxes[-1].stop + 1 : joined[-1].start - len(_BOX)]):
        joined.append(boxes.pop())
    contents = list(dict.fromkeys(text[box].strip() for box in reversed(joined)))
    place = slice(joined[-1].start - len(_BOX), joined[0].stop + 1)
    others = {text[box].strip() for box in boxes}
    return Boxed(", ".join(contents), place, is_only=others <= set(contents))


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last closed `\boxed{}`, or None."""
    boxes = _boxes(text)
    return text[boxes[-1]] if boxes else None


def _boxes(text: str) -> list[slice]:
    r"""Returns the contents of all boxes that are closed, of boxes in one another the outer one.

    Text around an inner box counts, too. It reads the text once, however many boxes are left open.
    """
    opened: list[int | None] = []
    found: list[slice] = []
    for place, character in enumerate(text):
        if character == "{":
            begins_box = text.startswith(_BOX, place + 1 - len(_BOX), place + 1)
            opened.append(place + 1 if begins_box else None)
        elif character == "}" and opened:
            begin = opened.pop()
            if begin is not None:
                while found and found[-1].start > begin:
                    found.pop()
                found.append(slice(begin, place))
    return found
