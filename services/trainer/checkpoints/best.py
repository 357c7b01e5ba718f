"""The best version of a stage's weights, in a folder whose name stays as better ones come."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from services.trainer.checkpoints.weights import TEMPORARY_SUFFIX, remove_tree
from services.trainer.types import WeightsOnDisk
from trinity.errors import ManifestError
from trinity.weights.delta import apply_delta, check_applied
from trinity.weights.manifest import (
    MANIFEST_NAME,
    ManifestHead,
    link_or_copy,
    move_into_place,
    read,
    seal,
)

logger = logging.getLogger(__name__)

OLD_SUFFIX = ".old"


class BestVersion:
    """The folder of the best version; its files are those of the version where links are possible.

    best = BestVersion(stage_directory / "best")
    best.copy_first([7, 4], store.published)
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._source: Path | None = None

    def copy_first(self, versions: Sequence[int], published: Iterable[WeightsOnDisk]) -> None:
        """Replaces the stored best version with the first of `versions`, unless it is the same.

        If several incarnations wrote a copy, takes the earliest: it is the one that was evaluated.
        """
        copies = [weights for weights in published if weights.version in versions[:1]]
        found = min(copies, key=lambda copy: (copy.incarnation, -copy.copy), default=None)
        if found is None or found.path == self._source:
            return
        if not self._holds(found):
            try:
                self._replace(found)
            except ManifestError as error:
                logger.warning("the best version is not copied", extra={"reason": str(error)})
                return
            logger.info("the best version so far", extra={"version": found.version})
        self._source = found.path

    def _holds(self, weights: WeightsOnDisk) -> bool:
        """Returns true if an earlier incarnation already copied this version."""
        here, there = self._root / MANIFEST_NAME, weights.path / MANIFEST_NAME
        try:
            return self._source is None and here.read_bytes() == there.read_bytes()
        except OSError:
            return False

    def _replace(self, weights: WeightsOnDisk) -> None:
        """Fills a new folder, then exchanges the two; a kill between costs the folder until it is
        filled again.
        """
        temporary = self._root.with_suffix(TEMPORARY_SUFFIX)
        old = self._root.with_suffix(OLD_SUFFIX)
        for leftover in (temporary, old):
            remove_tree(leftover)
        temporary.mkdir(parents=True)
        self._fill(temporary, weights)
        if self._root.exists():
            self._root.rename(old)
        move_into_place(temporary, self._root)
        remove_tree(old)

    def _fill(self, temporary: Path, weights: WeightsOnDisk) -> None:
        """Links the files, or writes the whole ones of a delta.

        Raises: ManifestError where its base is damaged.
        """
        if weights.is_whole:
            for path in sorted(weights.path.iterdir()):
                link_or_copy(path, temporary / path.name)
            return
        head = read(weights.path, weights.manifest_sha256).model_dump(exclude={"files"})
        apply_delta(weights.path, temporary)
        check_applied(weights.path, temporary, weights)
        seal(temporary, ManifestHead(**head))
