"""Which protection is switched off so that which check finds something."""

from dataclasses import dataclass

UNIQUE_WINNER = "run_attempt_winner_uq"
"""The database's own guard of one winner a run; it hides what the service's judgement lets pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A protection that is off, where something dies then, and the check that must notice."""

    off: str
    check: str
    dies: str = ""
    zombie: bool = False
    drops: str = ""
    """A constraint that would hide it."""
    visited: bool = False
    """Whether somebody gives rewards, takes samples out and brings tasksets meanwhile."""
    measured: bool = False
    """Whether versions are evaluated."""
    keeps_all: bool = False
    """Whether contents stay that nobody needs, which would be gone in any case."""


CONTROLS = (
    Control(off="commit-before-ack", dies="buffer.results-inserted", check="told_is_stored"),
    Control(off="one-transaction", dies="buffer.batch-recorded", check="nothing_is_lost"),
    Control(off="one-batch-a-row", check="no_row_twice"),
    Control(off="one-batch-a-row", check="trained_as_asked"),
    Control(off="batch-kept", check="batches_never_change"),
    Control(off="exact-version", check="runs_used_their_version"),
    Control(off="manifest", check="loads_were_verified"),
    Control(off="files-before-row", check="checkpoints_are_whole"),
    Control(
        off="incarnation",
        dies="rank.step-reported",
        zombie=True,
        check="only_the_newest_life_commits",
    ),
    Control(off="publication", dies="rank.step-reported", zombie=True, check="versions_go_forward"),
    Control(off="seeds", check="ends_in_the_same_weights"),
    Control(
        off="known-results",
        dies="buffer.results-committed",
        drops=UNIQUE_WINNER,
        check="stored_once",
    ),
    Control(off="one-winner", drops=UNIQUE_WINNER, check="one_attempt_a_run"),
    Control(off="one-winner", drops=UNIQUE_WINNER, check="whole_groups"),
    Control(off="needed-contents", check="contents_are_there"),
    Control(off="heard-once", check="ends_in_the_same_weights"),
    Control(off="exact-version", measured=True, check="evaluations_are_whole"),
    Control(off="rewards-stored", visited=True, check="rewards_are_kept"),
    Control(off="exclusion", visited=True, check="excluded_is_not_trained"),
    Control(off="inclusion", visited=True, check="included_is_trained"),
    Control(off="deletion", visited=True, keeps_all=True, check="deleted_is_gone"),
    Control(off="upload-count", visited=True, check="tasksets_are_whole"),
    Control(off="upload-rows-deleted", visited=True, check="tasksets_are_whole"),
)
