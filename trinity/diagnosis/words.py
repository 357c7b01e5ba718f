"""Wording of parts and durations in sentences."""

from trinity.diagnosis.snapshot import Part

TITLES = {
    "postgres": "Postgres",
    "nats": "the broker (NATS)",
    "ranks": "the ranks",
    "workflow": "a workflow",
    "engine": "the engine",
    "files": "weights files",
    "reader": "the reader of a taskset",
    "advantage function": "the advantage function",
    "another trainer": "another trainer",
    "rewards": "rewards from outside",
    "tasks": "tasks from outside",
}
PART_OF = {"database": "postgres", "broker": "nats"}
"""Parts by the names that waits use."""


def title(name: str) -> str:
    """Returns `the buffer`, `Postgres`."""
    return TITLES.get(PART_OF.get(name, name), f"the {name}")


def duration(seconds: float) -> str:
    """Returns `12 s`, `3 min 20 s`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def log_of(part: Part | None) -> str:
    """Returns the log's path as the end of a sentence."""
    return f"; its log is {part.log_file}" if part is not None and part.log_file else ""


def sentence(text: str) -> str:
    """Capitalizes the text and ends it with a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "."
