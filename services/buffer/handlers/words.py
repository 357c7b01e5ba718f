"""Texts for the reasons why a caller waits."""

from services.buffer.store.runs import OpenWork


def describe_rollouts(work: OpenWork) -> str:
    """Describes open training work of an explore step."""
    return f"explore step {work.explore_step}: {_describe(work)}"


def describe_evaluation(work: OpenWork) -> str:
    """Describes open work of an evaluation."""
    return f"evaluation of version {work.explore_step}: {_describe(work)}"


def describe_needed_version(work: OpenWork, published: int) -> str:
    """Describes training work whose weights the newest trainer has not published yet."""
    return (
        f"explore step {work.explore_step} needs weights version {work.required_version}, "
        f"this incarnation of the trainer has published version {published}"
    )


def describe_scopes(explore_step: int, num_groups: int, num_awaiting: int) -> str:
    """Describes groups that are complete but not in batches yet."""
    if num_awaiting == num_groups:
        return (
            f"explore step {explore_step}: {num_groups} groups wait for rewards that come later "
            "(`trinity feedback` gives them)"
        )
    awaiting = f", {num_awaiting} further ones wait for their rewards" if num_awaiting else ""
    working = num_groups - num_awaiting
    return f"explore step {explore_step}: the pipeline works on {working} groups{awaiting}"


def _describe(work: OpenWork) -> str:
    still_open = f"{work.num_open} of {work.num_all} assignments still open"
    holders = f", held by explorer {' and '.join(work.holders)}" if work.holders else ""
    pending = f", {work.num_pending} not leased" if work.num_pending else ""
    return still_open + holders + pending
