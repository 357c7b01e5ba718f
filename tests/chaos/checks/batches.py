"""Batches: never changed; along the line every row in one batch, none twice, none lost."""

from collections import Counter

from tests.chaos.snapshot import Sample, Snapshot

TRAINED = ("batched", "deleted")
"""States of rows of batches; what is deleted may have been in one, and stays there as a row."""


def batches_never_change(snapshot: Snapshot) -> list[str]:
    """Whoever asked for a batch, and whenever, got the rows on record."""
    on_record = {batch.step: batch.rows for batch in snapshot.batches}
    return [
        f"incarnation {seen.incarnation} got other rows for step {seen.step} than are on record"
        for seen in snapshot.seen
        if seen.rows != on_record.get(seen.step)
    ]


def no_row_twice(snapshot: Snapshot) -> list[str]:
    """Each row is in one batch at most; a sample is trained once for each row made of it.

    Rows of data come again once all have had their turn, and not before. With replay a row is in
    no batch twice; in which ones it is to be, `trained_as_asked` sees.
    """
    once = [batch for batch in snapshot.batches if not snapshot.stage.replay]
    rows = Counter(one for batch in once for one in batch.experience_ids)
    for batch in snapshot.batches:
        rows |= Counter(batch.experience_ids)
    made = Counter(one.payload_id for one in snapshot.samples if one.state in TRAINED)
    trained = Counter(one for batch in once for one in batch.payloads)
    drawn = Counter(one for batch in snapshot.batches for one in batch.data)
    return [
        *(f"the row {one} is in {n} batches" for one, n in rows.items() if n > 1),
        *(
            f"the sample {one} is trained {n} times, and {made[one]} rows are made of it"
            for one, n in trained.items()
            if n > made[one]
        ),
        *(
            f"the row {one} is drawn {n} times, another one {min(drawn.values())} times"
            for one, n in drawn.items()
            if n > min(drawn.values()) + 1
        ),
    ]


def nothing_is_lost(snapshot: Snapshot) -> list[str]:
    """Every step has its whole batch and is trained; every sample has gone where it says."""
    return [
        *_missing_steps(snapshot),
        *_lost_rows(snapshot),
        *_lost_copies(snapshot),
        *_lost_groups(snapshot),
    ]


def _missing_steps(snapshot: Snapshot) -> list[str]:
    stage = snapshot.stage
    sizes = {batch.step: len(batch.rows) for batch in snapshot.batches}
    from_data = {batch.step: len(batch.data) for batch in snapshot.batches}
    reported = {one.number for one in snapshot.commits if one.what == "report"}
    found = [] if stage.state == "finished" else [f"the stage is {stage.state}: {stage.reason}"]
    for step in range(1, stage.total_train_steps + 1):
        if not stage.replay and sizes.get(step) != stage.train_batch_size:
            found.append(f"the batch of step {step} has {sizes.get(step)} rows")
        if from_data.get(step, 0) != stage.num_expert_rows:
            found.append(f"{from_data.get(step, 0)} rows of step {step} are data")
        if step not in reported:
            found.append(f"step {step} was not reported")
    return found


def _lost_rows(snapshot: Snapshot) -> list[str]:
    batched = {one for batch in snapshot.batches for one in batch.experience_ids}
    children = Counter(one.parent_id for one in snapshot.samples if one.parent_id)
    found = []
    for one in snapshot.samples:
        if one.state != "deleted" and (one.state == "batched") != (one.id in batched):
            found.append(f"sample {one.id} is {one.state}, and in a batch: {one.id in batched}")
        if one.state == "filtered" and not one.reason:
            found.append(f"sample {one.id} was left out without a reason")
        if one.state == "derived" and not children[one.id]:
            found.append(f"sample {one.id} was shaped into no row")
    return found


def _lost_copies(snapshot: Snapshot) -> list[str]:
    """A sample becomes one row, and one more for each sample in whose place it stands."""
    children = Counter(one.parent_id for one in snapshot.samples if one.parent_id)
    num_copies = sum(number - 1 for number in children.values())
    num_replaced = sum(one.is_replaced for one in snapshot.samples)
    if num_copies == num_replaced:
        return []
    return [f"{num_copies} rows are copies, in place of {num_replaced} samples"]


def _lost_groups(snapshot: Snapshot) -> list[str]:
    """What lies before the last row that was trained is trained itself, or left out for a reason.

    Only where the order of rows is fixed.
    """
    if not snapshot.stage.is_ordered:
        return []
    batched = [_place(one) for one in snapshot.samples if one.state == "batched"]
    last = max(batched, default=(0, 0))
    passed = [one for one in snapshot.samples if _place(one) < last]
    open_before = [
        one
        for one in snapshot.assignments
        if (one.explore_step, one.position) < last and one.state in ("pending", "leased")
    ]
    return [
        *(
            f"sample {one.id} is {one.state} and was passed over"
            for one in passed
            if one.state in ("awaiting", "raw", "ready")
        ),
        *(f"assignment {one.id} is {one.state} and was passed over" for one in open_before),
    ]


def _place(one: Sample) -> tuple[int, int]:
    return one.explore_step, one.position
