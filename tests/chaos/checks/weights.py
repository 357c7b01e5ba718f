"""Weights: versions go forward, none is used unannounced or damaged, checkpoints are whole."""

from itertools import pairwise

from tests.chaos.snapshot import Snapshot


def versions_go_forward(snapshot: Snapshot) -> list[str]:
    """Announced in order; recorded only when announced; the same number is the same weights."""
    announced = sorted(snapshot.published, key=lambda one: one.at)
    found = [
        f"version {new.version} of incarnation {new.incarnation} came after version "
        f"{old.version} of incarnation {old.incarnation}"
        for old, new in pairwise(announced)
        if (new.incarnation, new.version) <= (old.incarnation, old.version)
    ]
    known = {(one.version, one.incarnation, one.weights_root) for one in snapshot.published}
    for one in snapshot.recorded:
        if (one.version, one.incarnation, one.weights_root) not in known:
            found.append(f"version {one.version} was recorded and never announced as it is")
    return found + _other_weights(snapshot)


def _other_weights(snapshot: Snapshot) -> list[str]:
    first: dict[int, str] = {}
    return [
        f"version {one.version} of incarnation {one.incarnation} has other weights than before"
        for one in sorted(snapshot.published, key=lambda one: one.at)
        if first.setdefault(one.version, one.weights_root) != one.weights_root
    ]


def runs_used_their_version(snapshot: Snapshot) -> list[str]:
    """Samples are made with weights that were announced; without offset, with those they name."""
    announced = {one.version for one in snapshot.published}
    required = {one.id: one.required_version for one in snapshot.assignments}
    found = []
    for one in snapshot.samples:
        used = set(one.versions)
        if not used <= announced:
            found.append(f"sample {one.id} was made with {used}, which were never announced")
        if snapshot.stage.is_ordered and used != {required[one.assignment_id]}:
            found.append(
                f"sample {one.id} was made with {used} instead of {required[one.assignment_id]}"
            )
    return found


def loads_were_verified(snapshot: Snapshot) -> list[str]:
    """Engines were given only weights with an announced manifest, and files that it vouches for."""
    announced = {one.manifest_sha256 for one in snapshot.published}
    damaged = [f"{one.path} was loaded, damaged" for one in snapshot.loads if not one.is_intact]
    unknown = [
        f"{one.path} was loaded with a manifest that was never announced"
        for one in snapshot.loads
        if one.manifest_sha256 not in announced
    ]
    return damaged + unknown


def checkpoints_are_whole(snapshot: Snapshot) -> list[str]:
    """Every checkpoint on record can be resumed from."""
    return [
        f"the checkpoint of step {one.step}, incarnation {one.incarnation}, is on record and broken"
        for one in snapshot.checkpoints
        if not one.is_intact
    ]
