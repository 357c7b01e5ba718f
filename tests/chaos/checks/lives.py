"""Lives of the trainer: only the newest one counts, and however many, the end is the same."""

from datetime import datetime

from tests.chaos.snapshot import Snapshot, Version


def only_the_newest_life_commits(snapshot: Snapshot) -> list[str]:
    """Nothing of a life is taken once the next one has begun."""
    began = {one.incarnation: one.at for one in snapshot.lives}
    return [
        f"{one.what} {one.number} of incarnation {one.incarnation} was taken after the next began"
        for one in snapshot.commits
        if one.incarnation + 1 in began and one.at > began[one.incarnation + 1]
    ] + _late_announcements(snapshot.published)


def _late_announcements(published: tuple[Version, ...]) -> list[str]:
    """The synchronizer knows of a new life by its first announcement."""
    first: dict[int, datetime] = {}
    for one in sorted(published, key=lambda one: one.at):
        first.setdefault(one.incarnation, one.at)
    return [
        f"version {one.version} of incarnation {one.incarnation} was announced after incarnation "
        f"{later}"
        for one in published
        for later, at in first.items()
        if later > one.incarnation and one.at > at
    ]


def ends_in_the_same_weights(snapshot: Snapshot) -> list[str]:
    """As if nothing had happened."""
    if snapshot.weights == snapshot.expected_weights:
        return []
    return [f"it ended in {snapshot.weights[:12]}, undisturbed {snapshot.expected_weights[:12]}"]
