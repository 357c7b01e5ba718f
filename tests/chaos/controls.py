"""Which protection is switched off so that which checks find something."""

from dataclasses import dataclass

NUM_STEPS = 3
UNIQUE_WINNER = "run_attempt_winner_uq"
"""The database's own guard of one winner a run; it hides what the service's judgement lets pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Protections that are off, where something dies then, and the checks that must notice."""

    off: tuple[str, ...]
    """Several where each has a check of its own, and none hides another."""
    checks: tuple[str, ...]
    dies: str = ""
    num_steps: int = NUM_STEPS
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
    Control(off=("commit-before-ack",), dies="buffer.results-inserted", checks=("told_is_stored",)),
    Control(off=("one-transaction",), dies="buffer.batch-recorded", checks=("nothing_is_lost",)),
    Control(off=("one-batch-a-row",), checks=("no_row_twice", "trained_as_asked")),
    Control(off=("batch-kept",), checks=("batches_never_change",)),
    Control(
        off=("exact-version", "manifest", "files-before-row"),
        measured=True,
        checks=(
            *("runs_used_their_version", "evaluations_are_whole"),
            *("loads_were_verified", "checkpoints_are_whole"),
        ),
    ),
    Control(
        off=("incarnation",),
        dies="rank.step-reported",
        zombie=True,
        checks=("only_the_newest_life_commits",),
    ),
    Control(
        off=("publication",),
        dies="rank.step-reported",
        zombie=True,
        checks=("versions_go_forward",),
    ),
    Control(off=("seeds",), checks=("ends_in_the_same_weights",)),
    Control(
        off=("known-results",),
        dies="buffer.results-committed",
        num_steps=24,  # so long that the broker brings again what was not acknowledged
        drops=UNIQUE_WINNER,
        checks=("stored_once",),
    ),
    Control(off=("one-winner",), drops=UNIQUE_WINNER, checks=("one_attempt_a_run", "whole_groups")),
    Control(off=("needed-contents",), checks=("contents_are_there",)),
    Control(off=("heard-once",), checks=("ends_in_the_same_weights",)),
    Control(off=("rewards-stored",), visited=True, checks=("rewards_are_kept",)),
    Control(
        off=("exclusion", "deletion", "upload-count"),
        visited=True,
        keeps_all=True,
        checks=("excluded_is_not_trained", "deleted_is_gone", "tasksets_are_whole"),
    ),
    Control(
        off=("inclusion", "reward-in-place", "upload-rows-deleted"),
        visited=True,
        keeps_all=True,
        checks=("included_is_trained", "contents_are_some_samples", "tasksets_are_whole"),
    ),
    Control(
        off=("overdue-told-with-it",),
        dies="buffer.overdue-left-out",
        visited=True,
        checks=("overdue_is_left_out",),
    ),
    Control(
        off=("abandoned-as-a-whole",),
        dies="buffer.abandoned-deleted",
        visited=True,
        checks=("tasksets_are_whole",),
    ),
)
