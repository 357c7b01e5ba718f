"""Turns what went wrong while the stack started into the one error to show."""

from pathlib import Path

from trinity.errors import RunFailed, TrinityError, UserError
from trinity.local.messages import USER_MISTAKE_EXIT_CODE, StackEvent

_DATA_FOLDERS = {"postgres": "the database", "nats": "the broker"}
"""Processes whose data is in `infra/<name>` of the run's directory."""
_CAUSES = (" PANIC: ", " FATAL: ")
"""A database logs these first and then at length how it ends."""


def start_error(event: StackEvent) -> TrinityError:
    """Returns a UserError if the process itself reported that its settings are wrong."""
    lines = event.log_tail.strip().splitlines() or [event.reason]
    if event.exit_code == USER_MISTAKE_EXIT_CODE:
        return UserError(f"{event.process} refused to start: {lines[-1]}")
    causes = [line for line in lines if any(cause in line for cause in _CAUSES)]
    why = (causes or lines)[-1]
    return RunFailed(
        f"{event.process} {event.reason}: {why}; its log: {event.log_file}{_advice(event)}"
    )


def _advice(event: StackEvent) -> str:
    """Returns advice for damaged data, which a restart does not repair."""
    if event.process not in _DATA_FOLDERS:
        return ""
    folder = Path(event.log_file).parents[1] / "infra" / event.process
    return (
        f"; if {_DATA_FOLDERS[event.process]} is damaged, put a copy of {folder} in its place, or "
        f"delete it to start over"
    )


def first_error(group: ExceptionGroup[Exception]) -> Exception:
    """Returns the error of the part that failed first; it caused the others to be cancelled."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, ExceptionGroup) else error
