"""Experiences as Trinity-RFT has them."""

from collections.abc import Iterable

from trinity.rft.import_hook import resolve
from trinity.types import EID, CustomField, Experience

__all__ = ["EID", "CustomField", "Experience", "group_by"]


def group_by(experiences: Iterable[Experience], id_type: str) -> dict[str, list[Experience]]:
    """Returns experiences by their `task`, `run` or `step`.

    Raises: ValueError for another kind of id.
    """
    kinds = {"task": "tid", "run": "rid", "step": "sid"}
    if id_type not in kinds:
        raise ValueError(f"experiences are grouped by task, run or step, not by {id_type!r}")
    groups: dict[str, list[Experience]] = {}
    for experience in experiences:
        groups.setdefault(getattr(experience.eid, kinds[id_type]), []).append(experience)
    return groups


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
