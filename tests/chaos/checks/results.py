"""Results: what was told is stored, once; groups are whole and of one attempt a run."""

from collections import Counter, defaultdict

from tests.chaos.snapshot import Snapshot

STATES = {"committed": {"won", "failed"}, "superseded": {"superseded"}, "late": {"late"}}
KEPT_ASIDE = {"superseded", "late"}


def told_is_stored(snapshot: Snapshot) -> list[str]:
    """Every result that an explorer was told of is there, as it was told, with all its samples."""
    attempts = {(one.assignment_id, one.run, one.attempt): one.state for one in snapshot.attempts}
    samples = {one.id for one in snapshot.samples}
    found = []
    for told in snapshot.told:
        place = (told.assignment_id, told.run, told.attempt)
        if told.fate == "rejected":
            found.append(f"the result {place} was refused")
        elif attempts.get(place) not in STATES[told.fate]:
            found.append(f"the result {place} was told {told.fate} and is {attempts.get(place)}")
        elif not samples.issuperset(told.experience_ids):
            found.append(f"samples of the result {place}, told {told.fate}, are missing")
    return found


def stored_once(snapshot: Snapshot) -> list[str]:
    """No content is there twice."""
    hashes = Counter(one.content_hash for one in snapshot.samples if not one.revision)
    return [
        f"the content {one[:12]} is stored {count} times"
        for one, count in hashes.items()
        if count > 1
    ]


def one_attempt_a_run(snapshot: Snapshot) -> list[str]:
    """Of each run at most one attempt won, and all its samples that count are that attempt's."""
    winners: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in snapshot.attempts:
        if one.state == "won":
            winners[one.assignment_id, one.run].append(one.attempt)
    found = [f"run {run} has the winners {won}" for run, won in winners.items() if len(won) > 1]
    for sample in snapshot.samples:
        won = winners.get((sample.assignment_id, sample.run), [])
        if sample.state not in KEPT_ASIDE and sample.attempt not in won:
            found.append(f"sample {sample.id} counts, though attempt {sample.attempt} lost")
    return found


def whole_groups(snapshot: Snapshot) -> list[str]:
    """A group is closed when all its runs have ended, and gives a row for each that was won.

    That a row is copied into another group's place is no row more of its own group.
    """
    runs: dict[str, list[str]] = defaultdict(list)
    for run in snapshot.runs:
        runs[run.assignment_id].append(run.state)
    parents = {(one.assignment_id, one.parent_id) for one in snapshot.samples if one.revision}
    derived = Counter(assignment_id for assignment_id, _ in parents)
    found = []
    for one in snapshot.assignments:
        states = runs[one.id]
        if len(states) != one.repeat_times:
            found.append(f"assignment {one.id} has {len(states)} of {one.repeat_times} runs")
        if one.state == "closed" and "open" in states:
            found.append(f"assignment {one.id} is closed with open runs")
        if derived[one.id] > states.count("won"):
            found.append(f"assignment {one.id} gave {derived[one.id]} rows for {states}")
    return found
