"""Contents: there as long as somebody may need them, and gone only where it was said."""

from tests.chaos.snapshot import Snapshot

UNTRAINED = ("awaiting", "raw", "ready")


def contents_are_there(snapshot: Snapshot) -> list[str]:
    """What a resume from the oldest kept checkpoint or an open group needs is there.

    All else is there too, unless its segment was given up or it was deleted.
    """
    oldest = min((one.step for one in snapshot.checkpoints), default=0)
    again = {
        one for batch in snapshot.batches if batch.step > oldest for one in batch.experience_ids
    }
    deleted = {one.payload_id for one in snapshot.samples if one.state == "deleted"}
    lost = [
        one for one in snapshot.samples if not one.has_content and one.payload_id not in deleted
    ]
    return [
        *(
            f"the content of {one.id} is gone, and a step after {oldest} may be trained again"
            for one in lost
            if one.id in again
        ),
        *(
            f"the content of {one.id} is gone, which is {one.state}"
            for one in lost
            if one.state in UNTRAINED
        ),
        *(
            f"the content of {one.id} is gone, and nobody has given it up"
            for one in lost
            if not one.is_let_go
        ),
    ]


def contents_are_some_samples(snapshot: Snapshot) -> list[str]:
    """What no sample holds is deleted with none, and nobody would ever see it."""
    return [f"the content {one} is there, and no sample has it" for one in snapshot.nobodys]
