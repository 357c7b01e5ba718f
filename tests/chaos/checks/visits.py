"""Visits: what somebody was told who works on a run while it goes on is so, and stays so."""

from collections import Counter

from tests.chaos.snapshot import Snapshot

TAKEN_OUT = ("excluded", "deleted")
OVERDUE = "`buffer.feedback_timeout`"


def rewards_are_kept(snapshot: Snapshot) -> list[str]:
    """A reward that was set once is the sample's from then on, and its revisions'."""
    told = [
        (one, reward)
        for rewarded in snapshot.visit.rewarded
        for one, reward in rewarded.rewards.items()
    ]
    times_new = Counter(
        one for rewarded in snapshot.visit.rewarded if rewarded.are_new for one in rewarded.rewards
    )
    stored = {one.id: one.reward for one in snapshot.samples}
    revised = [(one.id, one.parent_id, one.reward) for one in snapshot.samples if one.parent_id]
    given = dict(told)
    return [
        *(f"the reward of {one} was set {n} times" for one, n in times_new.items() if n > 1),
        *(
            f"the reward of {one} is {stored.get(one)}, told was {reward}"
            for one, reward in told
            if stored.get(one) != reward
        ),
        *(
            f"the revision {one} has the reward {reward} instead of {given[parent]}"
            for one, parent, reward in revised
            if parent in given and reward != given[parent]
        ),
    ]


def excluded_is_not_trained(snapshot: Snapshot) -> list[str]:
    """What was told to be excluded is, with all that was made of it, and is in no batch."""
    told = set(snapshot.visit.excluded)
    own = [one for one in snapshot.samples if told & {one.id, one.parent_id}]
    batched = {one for batch in snapshot.batches for one in batch.experience_ids}
    return [
        *(
            f"the sample {one.id} was excluded and is in a batch"
            for one in own
            if one.id in batched
        ),
        *(
            f"the sample {one.id} was excluded and is {one.state}"
            for one in own
            if one.state not in TAKEN_OUT
        ),
        *(f"the excluded sample {one} is not there" for one in told - {s.id for s in own}),
    ]


def included_is_trained(snapshot: Snapshot) -> list[str]:
    """What was put back goes where any other sample goes."""
    told = set(snapshot.visit.included)
    return [
        f"the sample {one.id} was included again and is excluded"
        for one in snapshot.samples
        if one.id in told and one.state == "excluded"
    ]


def overdue_is_left_out(snapshot: Snapshot) -> list[str]:
    """A sample whose reward never came is left out for that, alone, and that is told once."""
    overdue = set(snapshot.visit.overdue)
    own = [one for one in snapshot.samples if overdue & {one.id, one.parent_id}]
    left_out = {one.id for one in snapshot.samples if OVERDUE in one.reason}
    num_told = snapshot.visit.num_told_overdue
    batched = {one for batch in snapshot.batches for one in batch.experience_ids}
    return [
        *(f"the sample {one.id} was overdue and is in a batch" for one in own if one.id in batched),
        *(
            f"the sample {one.id} was overdue, is {one.state}, and has the reward {one.reward}"
            for one in own
            if one.state != "filtered" or one.reward is not None
        ),
        *(f"the overdue sample {one} is not left out as such" for one in overdue - left_out),
        *(f"the sample {one} is left out as overdue and was not" for one in left_out - overdue),
        *(
            f"{num_told} overdue samples were told of instead of {len(left_out)}"
            for _ in range(num_told != len(left_out))
        ),
    ]


def deleted_is_gone(snapshot: Snapshot) -> list[str]:
    """What was told to be deleted has no content any more, and is known to be deleted."""
    told = set(snapshot.visit.deleted)
    return [
        f"the sample {one.id} was deleted, is {one.state}, and has content: {one.has_content}"
        for one in snapshot.samples
        if one.id in told and (one.has_content or one.state != "deleted")
    ]


def tasksets_are_whole(snapshot: Snapshot) -> list[str]:
    """Tasksets that were brought hold what was sent, once and in order; what is gone holds nothing.

    However often the client was cut off and sent it again; and what nobody sent again goes whole.
    """
    return [
        f"the taskset {one.name} was told to have {one.told_rows} rows (-1: deleted), has "
        f"{one.stored_rows}, the first {one.right_rows} of them as they were sent"
        for one in snapshot.visit.tasksets
        if not max(one.told_rows, 0) == one.stored_rows == one.right_rows
    ]
