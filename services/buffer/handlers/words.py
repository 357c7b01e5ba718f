"""Sentences that say what somebody waits for."""

from services.buffer.store.runs import OpenWork


def describe_rollouts(work: OpenWork) -> str:
    """Open training work of an explore step."""
    return f"explore step {work.explore_step}: {_describe(work)}"


def describe_evaluation(work: OpenWork) -> str:
    """Open work of an evaluation."""
    return f"evaluation of version {work.explore_step}: {_describe(work)}"


def describe_needed_version(work: OpenWork, published: int) -> str:
    """Open training work whose weights the newest trainer has not published yet."""
    return (
        f"explore step {work.explore_step} needs weights version {work.required_version}, "
        f"this life of the trainer has published version {published}"
    )


def _describe(work: OpenWork) -> str:
    still_open = f"{work.num_open} of {work.num_all} assignments still open"
    holders = f", held by explorer {' and '.join(work.holders)}" if work.holders else ""
    pending = f", {work.num_pending} not leased" if work.num_pending else ""
    return still_open + holders + pending
