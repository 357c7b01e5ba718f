"""Damaged weights: explorers report them, and the trainer verifies before it writes them again."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc

from services.trainer.types import WeightsOnDisk
from trinity.errors import ManifestError
from trinity.weights.identity import same_weights
from trinity.weights.manifest import FileSignature, file_signature, verify
from trinity.weights.whole import whole_model

logger = logging.getLogger(__name__)

MIN_RECHECK_SECONDS = 5.0
"""Files that keep changing are not verified more often than this."""
RECHECK_SECONDS = 600.0
"""Unchanged files that were found intact are not verified again before."""
REOPEN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DamagedWeights:
    """A version that this process found damaged."""

    weights: WeightsOnDisk
    damage: str
    """What differs."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    signature: FileSignature
    checked_at: float


@dataclass(slots=True, kw_only=True)
class ReportVerifier:
    """Decides whether reported weights are damaged; reports in a row cost one verification.

    Intact files are hashed again if their names, sizes, times or inodes changed, or after
    `RECHECK_SECONDS`, as corruption on disk leaves these unchanged.
    """

    clock: Callable[[], float] = time.monotonic
    _intact: dict[Path, _Verdict] = field(default_factory=dict)

    def find_damage(self, weights: WeightsOnDisk) -> str:
        """Describes the damage of the files; empty if they are intact."""
        signature = file_signature(weights.path)
        if self._is_known_intact(weights.path, signature):
            return ""
        try:
            manifest = verify(weights.path, weights.manifest_sha256)
            with whole_model(weights.path, weights):
                pass  # a damaged base is found here
        except ManifestError as error:
            return str(error)
        if not same_weights(manifest.roots, weights):
            return f"{weights.path} holds other weights than were announced"
        self._intact[weights.path] = _Verdict(signature, self.clock())
        logger.warning(
            "weights reported as damaged are intact here: can explorers read the directory?",
            extra={"path": str(weights.path)},
        )
        return ""

    def _is_known_intact(self, path: Path, signature: FileSignature) -> bool:
        known = self._intact.get(path)
        if known is None:
            return False
        age = self.clock() - known.checked_at
        limit = RECHECK_SECONDS if known.signature == signature else MIN_RECHECK_SECONDS
        return age < limit


class DamageReports(Protocol):
    """The synchronizer's reports of damaged versions, as the trainer sees them."""

    def reported_versions(self) -> list[WeightsOnDisk]:
        """Returns versions of the stage that explorers have reported."""
        ...

    def retire(self, weights: Iterable[WeightsOnDisk], damage: str = "") -> None:
        """Reports that versions are lost."""
        ...


def retire_damaged(reports: DamageReports, final_version: int) -> None:
    """Declares versions before the final one lost that explorers report and that are damaged.

    For a stage that has been trained: no learner holds them any more.
    """
    verifier = ReportVerifier()
    for weights in reports.reported_versions():
        damage = verifier.find_damage(weights) if weights.version != final_version else ""
        if damage:
            logger.error("published weights are lost", extra={"reason": damage})
            reports.retire([weights], damage)


class ReportStream(Protocol):
    """Streams the versions that are reported as damaged."""

    def follow_reports(self) -> Iterator[list[WeightsOnDisk]]:
        """Yields all reported versions at each change, until the stream is to be opened again.

        Raises: grpc.RpcError.
        """
        ...


class DamageWatch:
    """Follows reports in a thread of the first rank, and collects the damaged versions.

    watch = DamageWatch(synchronizer, on_damage=buffer.interrupt_poll)
    watch.start()
    if watch.has_damage:
        damaged = watch.take_damaged()
    """

    def __init__(
        self,
        reports: ReportStream,
        *,
        on_damage: Callable[[], None],
        verifier: ReportVerifier | None = None,
    ) -> None:
        """Calls `on_damage` in its thread after each finding."""
        self._reports = reports
        self._on_damage = on_damage
        self._verifier = verifier or ReportVerifier()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._damaged: list[DamagedWeights] = []
        self._found: set[Path] = set()
        """Directories that are not verified again: they are about to be replaced."""
        self._thread = threading.Thread(target=self._follow, name="damage-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Has the thread end with its current call."""
        self._stop.set()

    @property
    def has_damage(self) -> bool:
        """True if a version is damaged and not yet taken."""
        return bool(self._damaged)

    def take_damaged(self) -> list[DamagedWeights]:
        """Returns damaged versions, each once; the caller replaces them or declares them lost."""
        with self._lock:
            damaged, self._damaged = self._damaged, []
        return damaged

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                for reported in self._reports.follow_reports():
                    self._verify(reported)
                    if self._stop.is_set():
                        return
            except (grpc.RpcError, ValueError, OSError) as error:  # closed, or no room to apply
                logger.debug("reports of damage are not followed", extra={"reason": str(error)})
            self._stop.wait(REOPEN_SECONDS)

    def _verify(self, reported: list[WeightsOnDisk]) -> None:
        for weights in reported:
            if weights.path in self._found or self._stop.is_set():
                continue
            damage = self._verifier.find_damage(weights)
            if not damage:
                continue
            logger.error("published weights are damaged", extra={"reason": damage})
            self._found.add(weights.path)
            with self._lock:
                self._damaged.append(DamagedWeights(weights, damage))
            self._on_damage()
