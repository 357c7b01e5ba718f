"""Values that a check would warn of, though what happens gives the same result."""

from trinity.config.root import Config
from trinity.config.shape import section_at
from trinity.config.status import NoEffect, mark_of
from trinity.verl.json_value import JsonValue

SAME_RESULT = ("trainer.use_dynamic_bsz", "trainer.balance_batch")
"""They change memory and time alone."""


def happens_instead(ours: str, value: JsonValue) -> str | None:
    """What happens, as good; None where the value is to be written."""
    if ours not in SAME_RESULT:
        return None
    *parents, last = ours.split(".")
    section = section_at(tuple(parents), Config)
    assert section is not None
    field = section.model_fields[last]
    mark = mark_of(field)
    return mark.reason if isinstance(mark, NoEffect) and field.default != value else None
