"""Weights and checkpoints that the database has lost: kept, but out of the way of new ones."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from services.trainer.checkpoints.weights import NAME_PATTERN
from services.trainer.types import WeightsOnDisk
from trinity.weights.manifest import make_durable
from trinity.weights.stored import BEST_FOLDER, best_manifest

logger = logging.getLogger(__name__)

SET_ASIDE = "set-aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFiles:
    """The whole directories of a stage's lives that its database may not know.

    These are lives before a restore and, where the database was lost without one, those still to
    come. Other unknown directories were left by a killed writer, and are removed elsewhere.
    """

    stage: Path
    incarnation: int
    restored: int
    """The incarnation that the newest restore began; 0 without any."""

    def move_unknown(
        self, committed: Iterable[Path], announced: Callable[[], Iterable[WeightsOnDisk]]
    ) -> None:
        """Moves the directories that the database does not know to a folder of this life."""
        if not (found := self._candidates()):
            return
        known = {path.name for path in (*committed, *(weights.path for weights in announced()))}
        target = self.stage / SET_ASIDE / str(self.incarnation)
        moved = [path for path in found if _name_of(path) not in known]
        for path in moved:
            target.mkdir(parents=True, exist_ok=True)
            path.rename(target / path.name)
            make_durable(path.parent)
        if moved:
            make_durable(target)
            logger.warning(
                "the database does not know these weights and checkpoints: they were set aside",
                extra={"folder": str(target), "names": ", ".join(path.name for path in moved)},
            )

    def _candidates(self) -> list[Path]:
        named = [
            path
            for folder in ("weights", "checkpoints")
            for path in sorted((self.stage / folder).glob("*-*"))
            if (match := NAME_PATTERN.fullmatch(path.name)) and self._is_lost(int(match[1]))
        ]
        best = best_manifest(self.stage)
        is_lost = best is not None and self._is_lost(best.incarnation)
        return [*named, self.stage / BEST_FOLDER] if is_lost else named

    def _is_lost(self, incarnation: int) -> bool:
        return incarnation < self.restored or incarnation >= self.incarnation


def _name_of(path: Path) -> str:
    """Returns the name by which the database would know a directory."""
    if path.name != BEST_FOLDER or (manifest := best_manifest(path.parent)) is None:
        return path.name
    return f"v{manifest.step}-{manifest.incarnation}"
