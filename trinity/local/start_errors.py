"""Turns what went wrong while the stack started into the one error to show."""

from trinity.errors import RunFailed, TrinityError, UserError
from trinity.local.messages import USER_MISTAKE_EXIT_CODE, StackEvent


def start_error(event: StackEvent) -> TrinityError:
    """Return a UserError where the process itself said that its settings are wrong."""
    last_line = event.log_tail.strip().splitlines()[-1:] or [event.reason]
    if event.exit_code == USER_MISTAKE_EXIT_CODE:
        return UserError(f"{event.process} refused to start: {last_line[0]}")
    return RunFailed(f"{event.process} {event.reason}: {last_line[0]}; its log: {event.log_file}")


def first_error(group: ExceptionGroup[Exception]) -> Exception:
    """Return the error of the part that failed first; the others were cancelled for it."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, ExceptionGroup) else error
