"""Takes the rows of a taskset through a task pipeline; runs as a process of its own.

    python -m trinity.task_operators.worker 2147483648

The argument is how many bytes of memory it may take for its data. The first line of standard input
is the pipeline, the others are rows. It answers lines with a letter and a blank in front: `C` and
an operator that is called now and may take too long, or nothing when that call has ended, `D` and
how many rows were read, `R` and how many rows that stay follow, of how many bytes: first their
numbers in the source, 8 bytes each, then a line for each row. `S` and the counts are the last line,
`E` and what is wrong in place of that, or `U` and who does not answer.
"""

import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from trinity.errors import Unavailable, UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.task_operators.operating import Operating
from trinity.task_operators.ordering import IntVector
from trinity.task_operators.spool import Spool
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline, TaskOperator
from trinity.task_operators.task_rows import Row

ROWS_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 * 1024**2
MAX_ERROR_LENGTH = 10_000


@dataclass(frozen=True, slots=True)
class _Answers:
    """Lines to who asked; what an operator prints goes to standard error."""

    stream: BinaryIO

    def say(self, letter: str, text: str) -> None:
        self.stream.write(f"{letter} {text}\n".encode())
        self.stream.flush()

    def give(self, numbers: IntVector, rows: Sequence[bytes]) -> None:
        """Rows that stay."""
        lines = b"\n".join([*rows, b""])
        self.stream.write(b"R %d %d\n" % (len(rows), len(lines)))
        self.stream.write(numbers.astype("<i8").tobytes())
        self.stream.write(lines)

    @contextmanager
    def calling(self, operator: TaskOperator) -> Iterator[None]:
        """Who waits knows what it waits for and until when, where that is a user's."""
        if not operator.is_own:
            yield
            return
        self.say("C", operator.name)
        try:
            yield
        finally:
            self.say("C", "")


def main() -> int:
    """Work; what is wrong is an answer, and the exit code says that it ended by itself."""
    memory_bytes = int(sys.argv[1])
    answers = _Answers(_own_output())
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    try:
        load_plugins(plugin_dirs_from_environment())
        pipeline = ResolvedTaskPipeline.model_validate_json(sys.stdin.buffer.readline())
        with Spool() as spool:
            _run(pipeline, spool, answers)
    except (UserError, Unavailable) as error:
        letter = "E" if isinstance(error, UserError) else "U"
        answers.say(letter, " ".join(str(error).split())[:MAX_ERROR_LENGTH])
    except MemoryError:
        mib = memory_bytes / 1024**2
        answers.say("E", f"it needs more than the {mib:,.0f} MiB of memory it may take")
    except OSError as error:
        place = tempfile.gettempdir()
        answers.say("E", f"it keeps rows in {place} while it orders them: {error.strerror}")
    return 0


def _run(pipeline: ResolvedTaskPipeline, spool: Spool, answers: _Answers) -> None:
    operating = Operating(pipeline, spool, answers.calling)
    for rows in _parts(sys.stdin.buffer):
        operating.take(rows)
        answers.say("D", str(operating.num_read))
    for numbers, texts in operating.ordered():
        answers.give(numbers, texts)
    counts = {
        "num_read": operating.num_read,
        "left_out": dict(operating.left_out),
        "ordered_by": operating.ordered_by,
    }
    answers.say("S", json.dumps(counts))


def _parts(lines: BinaryIO) -> Iterator[list[Row]]:
    """Rows in parts of the same size whoever sends them, so that operators give the same."""
    rows: list[Row] = []
    size = 0
    for line in lines:
        rows.append(json.loads(line.decode()))
        size += len(line)
        if len(rows) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _own_output() -> BinaryIO:
    """Keep the way to whoever asks for ourselves."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


if __name__ == "__main__":
    sys.exit(main())
