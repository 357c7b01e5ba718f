"""What must hold of every snapshot; each check answers what it found, in sentences."""

from collections.abc import Callable, Mapping

from tests.chaos.checks.batches import batches_never_change, no_row_twice, nothing_is_lost
from tests.chaos.checks.contents import contents_are_some_samples, contents_are_there
from tests.chaos.checks.evaluations import evaluations_are_whole
from tests.chaos.checks.lives import ends_in_the_same_weights, only_the_newest_life_commits
from tests.chaos.checks.replay import trained_as_asked
from tests.chaos.checks.results import one_attempt_a_run, stored_once, told_is_stored, whole_groups
from tests.chaos.checks.visits import (
    deleted_is_gone,
    excluded_is_not_trained,
    included_is_trained,
    overdue_is_left_out,
    rewards_are_kept,
    tasksets_are_whole,
)
from tests.chaos.checks.weights import (
    checkpoints_are_whole,
    loads_were_verified,
    runs_used_their_version,
    versions_go_forward,
)
from tests.chaos.snapshot import Snapshot

Check = Callable[[Snapshot], list[str]]
ALL = (
    told_is_stored,
    stored_once,
    one_attempt_a_run,
    whole_groups,
    batches_never_change,
    no_row_twice,
    trained_as_asked,
    nothing_is_lost,
    versions_go_forward,
    runs_used_their_version,
    loads_were_verified,
    checkpoints_are_whole,
    only_the_newest_life_commits,
    ends_in_the_same_weights,
    contents_are_there,
    contents_are_some_samples,
    rewards_are_kept,
    excluded_is_not_trained,
    included_is_trained,
    overdue_is_left_out,
    deleted_is_gone,
    tasksets_are_whole,
    evaluations_are_whole,
)
CHECKS: Mapping[str, Check] = {check.__name__: check for check in ALL}
Findings = Mapping[str, list[str]]


def findings(snapshot: Snapshot) -> Findings:
    """What the checks found, by their names; empty when all is well."""
    found = {name: check(snapshot) for name, check in CHECKS.items()}
    return {name: sentences for name, sentences in found.items() if sentences}
