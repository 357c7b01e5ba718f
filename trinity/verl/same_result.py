"""Values that a check would warn about although the result is the same without them."""

from trinity.config.loading.source import section_at
from trinity.config.schema.base import NoEffect, mark_of
from trinity.config.schema.experiment import Config
from trinity.verl.json_value import JsonValue

SAME_RESULT = ("trainer.use_dynamic_bsz", "trainer.balance_batch")
"""Keys that change only memory and time."""


def happens_instead(ours: str, value: JsonValue) -> str | None:
    """The reason why the result is the same without the value; None if it must be written."""
    if ours not in SAME_RESULT:
        return None
    *parents, last = ours.split(".")
    section = section_at(tuple(parents), Config)
    assert section is not None
    field = section.model_fields[last]
    mark = mark_of(field)
    return mark.reason if isinstance(mark, NoEffect) and field.default != value else None
