"""Runs a task pipeline over the rows of a taskset; runs as a separate process.

    python -m trinity.operators.tasks.worker 2147483648

The argument is the limit of its data memory in bytes. The first line of standard input has the
`pipeline`, the others are rows. The answers:

- `calls`: the name of the user operator being called, or empty when that call has ended
- `rows`, the number of kept rows that follow, and `num_bytes` of their lines; then their indices in
  the source, 8 bytes each, and a line for each row
- `counts`, the last answer; in its place an `error`, or the `unavailable` service's error
"""

import json
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
from trinity.runtime.process.channel import RequestChannel
from trinity.user_code.worker_process import out_of_memory

ROWS_AT_ONCE = 1_000
BYTES_AT_ONCE = 4 * 1024**2
MAX_ERROR_LENGTH = 10_000


@dataclass(frozen=True, slots=True)
class _Answers:
    channel: RequestChannel

    def write_rows(self, numbers: IntVector, rows: Sequence[bytes]) -> None:
        """Writes rows that are kept."""
        lines = b"\n".join([*rows, b""])
        self.channel.write(
            {"rows": len(rows), "num_bytes": len(lines)}, numbers.astype("<i8").tobytes(), lines
        )

    @contextmanager
    def announce_call(self, operator: TaskOperator) -> Iterator[None]:
        """Announces a user's operator for the call, so that the parent can enforce a deadline."""
        if not operator.is_own:
            yield
            return
        self.channel.write({"calls": operator.name})
        try:
            yield
        finally:
            self.channel.write({"calls": ""})


def main() -> int:
    """Runs the pipeline; errors are answers, so exit code 0 only says that it was not killed."""
    memory_bytes = int(sys.argv[1])
    channel = RequestChannel()
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    given = next(channel.requests())["pipeline"]
    try:
        load_plugins(plugin_dirs_from_environment())
        with RowSpool() as spool:
            _run(ResolvedTaskPipeline.model_validate_json(given), spool, _Answers(channel))
    except (UserError, Unavailable) as error:
        key = "error" if isinstance(error, UserError) else "unavailable"
        channel.write({key: " ".join(str(error).split())[:MAX_ERROR_LENGTH]})
    except MemoryError:
        channel.write({"error": out_of_memory(memory_bytes)})
    except OSError as error:
        place = tempfile.gettempdir()
        channel.write({"error": f"it keeps rows in {place} while it orders them: {error.strerror}"})
    return 0


def _run(pipeline: ResolvedTaskPipeline, spool: RowSpool, answers: _Answers) -> None:
    operating = TaskPipelineRunner(pipeline, spool, answers.announce_call)
    for rows in _parts(answers.channel.input):
        operating.process(rows)
    for numbers, texts in operating.iterate_ordered():
        answers.write_rows(numbers, texts)
    counts = {
        "num_read": operating.num_read,
        "left_out": dict(operating.left_out),
        "ordered_by": operating.ordered_by,
    }
    answers.channel.write({"counts": counts})


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


if __name__ == "__main__":
    sys.exit(main())
