"""Tracks weights that runs wait for but that cannot be loaded, and shows them until a deadline."""

import time
from dataclasses import dataclass

from services.explorer.patience import Patience
from services.explorer.weights_types import Requirement


@dataclass(frozen=True, slots=True)
class Lack:
    """The reason why weights are unavailable."""

    waits_for: str
    what: str
    """Continues "waited for the ..."."""


class LackingWeights:
    """Tracks since when each requirement could not be met."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._since: dict[Requirement, float] = {}
        self._shown = ""

    def are(self, lacks: dict[Requirement, Lack]) -> None:
        """Records everything that is lacking now.

        Raises: StageFailed when a requirement has been unmet for too long.
        """
        now = time.monotonic()
        self._since = {required: self._since.get(required, now) for required in lacks}
        oldest = min(self._since, key=self._since.__getitem__, default=None)
        if oldest is None:
            self._show("")
            return
        lack = lacks[oldest]
        if now - self._since[oldest] >= self._patience.seconds:
            raise self._patience.lost(lack.waits_for, lack.what)
        self._show(f"weights {oldest.version} of incarnation {oldest.incarnation}", lack)

    def seconds_left(self) -> float | None:
        """Returns the seconds until the deadline; None when nothing is lacking."""
        if not self._since:
            return None
        waited = time.monotonic() - min(self._since.values())
        return max(self._patience.seconds - waited, 0.0)

    def over(self) -> None:
        """Clears everything: no run waits any more."""
        self._since.clear()
        self._show("")

    def _show(self, name: str, lack: Lack | None = None) -> None:
        waits = self._patience.waits
        if self._shown != name:
            waits.clear(self._shown)
        self._shown = name
        if lack is not None:
            waits.set(
                name,
                waits_for=lack.waits_for,
                reason=lack.what,
                deadline_seconds=self._patience.deadline_seconds,
            )
