"""Replay: each sample in exactly the batches asked for, and in one where nothing is asked for."""

from collections import Counter
from itertools import pairwise

from tests.chaos.snapshot import Sample, Snapshot
from tests.support.replay_model import Rules, batches


def trained_as_asked(snapshot: Snapshot) -> list[str]:
    """As often as was asked for, and where the order is fixed in the very batches."""
    rules = snapshot.stage.replay
    if rules is None:
        return _trained_again(snapshot)
    if snapshot.stage.is_ordered:
        return _other_rows(snapshot, rules)
    return _without_rest(snapshot, rules)


def _trained_again(snapshot: Snapshot) -> list[str]:
    uses = Counter(one for batch in snapshot.batches for one in batch.experience_ids)
    return [
        f"the sample {one} is trained {n} times, and nothing asks for replay"
        for one, n in uses.items()
        if n > 1
    ]


def _other_rows(snapshot: Snapshot, rules: Rules) -> list[str]:
    """The batches are those that follow from the rollouts alone."""
    shaped = {_place(one): one for one in snapshot.samples if one.parent_id}
    versions = [(place, one.versions[0] or 0) for place, one in shaped.items()]
    on_record = {batch.step: batch.experience_ids for batch in snapshot.batches}
    found = []
    for step, places in enumerate(batches(versions, rules), start=1):
        expected = tuple(shaped[place].id for place in places)
        if on_record.get(step) != expected:
            found.append(f"the batch of step {step} has other rows than replay asks for")
    return found


def _without_rest(snapshot: Snapshot, rules: Rules) -> list[str]:
    """Between two uses lie as many steps as the plan says, and uses have their limit."""
    steps: dict[str, list[int]] = {}
    for batch in snapshot.batches:
        for one in batch.experience_ids:
            steps.setdefault(one, []).append(batch.step)
    found = []
    for one, used in steps.items():
        rests = [later - earlier for earlier, later in pairwise(used)]
        if rests and min(rests) < rules.cooldown:
            found.append(f"the sample {one} is in the batches of steps {used}, without a rest")
        if rules.use_limit and len(used) > rules.use_limit:
            found.append(f"the sample {one} is trained {len(used)} times")
    return found


def _place(one: Sample) -> tuple[int, int, int]:
    return one.explore_step, one.position, one.run
