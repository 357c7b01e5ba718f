"""Weights as values."""

from dataclasses import dataclass, field
from pathlib import Path

from trinity.transfer.offer import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsId:
    """Identity of weights: the train step that made them, and the trainer's incarnation."""

    version: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """The weights that a run may use: this version or, if not `exact`, any newer one.

    They may be of this incarnation or a later one: a later incarnation of the trainer makes the
    same version again from the same recorded batches.
    """

    version: int
    incarnation: int
    exact: bool

    def is_met_by(self, loaded: WeightsId | None) -> bool:
        """Returns true if a run may begin with `loaded`; older incarnations never suit."""
        if loaded is None or loaded.incarnation < self.incarnation:
            return False
        if self.exact:
            return loaded.version == self.version
        return loaded.version >= self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """Weights on disk; those of a user's model have no manifest and no hash."""

    id: WeightsId
    path: Path
    manifest_sha256: bytes
    weights_sha256: bytes
    offer: Offer | None = field(default=None, compare=False)
    """The trainer's offer to transfer them from memory to memory, if it makes one."""

    @property
    def content(self) -> bytes:
        """Identity of the content: its hash, else its path."""
        return self.weights_sha256 or str(self.path).encode()


def model_weights(model_path: str) -> PublishedWeights:
    """Returns the user's model as weights, for stages in which no weights are published."""
    return PublishedWeights(
        id=WeightsId(version=0, incarnation=0),
        path=Path(model_path),
        manifest_sha256=b"",
        weights_sha256=b"",
    )


def best_match(
    required: Requirement, published: tuple[PublishedWeights, ...]
) -> PublishedWeights | None:
    """Returns the oldest weights that meet the requirement: those it names, if still there."""
    matches = [weights for weights in published if required.is_met_by(weights.id)]
    return min(matches, key=lambda w: (w.id.version, w.id.incarnation), default=None)
