"""Runs a task pipeline over the rows of a taskset; runs as a separate process.

    python -m trinity.operators.tasks.worker 2147483648

The argument is the limit of its data memory in bytes. The first line of standard input is the
pipeline, the others are rows. Each line of the answer begins with a letter and a blank:

- `C` and the name of a user's operator that is called now, or nothing when that call has ended
- `D` and the number of rows read
- `R`, the number of kept rows that follow and their bytes; then their indices in the source, 8
  bytes each, and a line for each row
- `S` and the counts, the last line; in its place `E` and an error, or `U` and the error of a
  service that does not answer
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
from trinity.operators.tasks.operating import IntVector, TaskPipelineRunner
from trinity.operators.tasks.spool import RowSpool
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline, TaskOperator
from trinity.operators.tasks.task_rows import Row
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.user_code.worker_process import reserve_stdin

ROWS_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 * 1024**2
MAX_ERROR_LENGTH = 10_000


@dataclass(frozen=True, slots=True)
class _ResponseWriter:
    """Writes answers to the parent process; output of operators goes to standard error."""

    stream: BinaryIO

    def write_line(self, letter: str, text: str) -> None:
        self.stream.write(f"{letter} {text}\n".encode())
        self.stream.flush()

    def write_rows(self, numbers: IntVector, rows: Sequence[bytes]) -> None:
        """Writes rows that are kept."""
        lines = b"\n".join([*rows, b""])
        self.stream.write(b"R %d %d\n" % (len(rows), len(lines)))
        self.stream.write(numbers.astype("<i8").tobytes())
        self.stream.write(lines)

    @contextmanager
    def announce_call(self, operator: TaskOperator) -> Iterator[None]:
        """Announces a user's operator for the call, so that the parent can enforce a deadline."""
        if not operator.is_own:
            yield
            return
        self.write_line("C", operator.name)
        try:
            yield
        finally:
            self.write_line("C", "")


def main() -> int:
    """Runs the pipeline; errors are answers, so exit code 0 only says that it was not killed."""
    memory_bytes = int(sys.argv[1])
    answers = _ResponseWriter(_take_stdout())
    given = reserve_stdin()  # held, since it closes its bytes otherwise
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    try:
        load_plugins(plugin_dirs_from_environment())
        pipeline = ResolvedTaskPipeline.model_validate_json(given.buffer.readline())
        with RowSpool() as spool:
            _run(pipeline, given.buffer, spool, answers)
    except (UserError, Unavailable) as error:
        letter = "E" if isinstance(error, UserError) else "U"
        answers.write_line(letter, " ".join(str(error).split())[:MAX_ERROR_LENGTH])
    except MemoryError:
        mib = memory_bytes / 1024**2
        answers.write_line("E", f"it needs more than the {mib:,.0f} MiB of memory it may take")
    except OSError as error:
        place = tempfile.gettempdir()
        answers.write_line("E", f"it keeps rows in {place} while it orders them: {error.strerror}")
    return 0


def _run(
    pipeline: ResolvedTaskPipeline, given: BinaryIO, spool: RowSpool, answers: _ResponseWriter
) -> None:
    operating = TaskPipelineRunner(pipeline, spool, answers.announce_call)
    for rows in _parts(given):
        operating.process(rows)
        answers.write_line("D", str(operating.num_read))
    for numbers, texts in operating.iterate_ordered():
        answers.write_rows(numbers, texts)
    counts = {
        "num_read": operating.num_read,
        "left_out": dict(operating.left_out),
        "ordered_by": operating.ordered_by,
    }
    answers.write_line("S", json.dumps(counts))


def _parts(lines: BinaryIO) -> Iterator[list[Row]]:
    """Yields rows in parts of fixed size, so that results do not depend on the sender."""
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


def _take_stdout() -> BinaryIO:
    """Returns the original standard output, and redirects standard output to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


if __name__ == "__main__":
    sys.exit(main())
