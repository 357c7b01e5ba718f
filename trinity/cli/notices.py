"""Labels in a terminal for keys that do not act as written."""

from trinity.config.schema.base import Status

WORDS = {
    Status.NO_EFFECT: "no effect",
    Status.RENAMED: "renamed",
    Status.PLANNED: "planned",
}
"""First word of a notice's line."""
