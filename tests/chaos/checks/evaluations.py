"""Evaluations: all that are due, each on all of its tasks, with the very version that it names."""

from collections import defaultdict
from collections.abc import Iterator
from math import isclose
from statistics import fmean

from tests.chaos.snapshot import Evaluation, Sample, Snapshot


def evaluations_are_whole(snapshot: Snapshot) -> list[str]:
    """What is due was measured, and what was measured is what its samples say."""
    done = [one for one in snapshot.evaluations if one.state == "done"]
    known = {(one.version, one.taskset) for one in done}
    missing = [
        f"version {version} was not measured on {name}"
        for version in snapshot.stage.due_versions
        for name in snapshot.stage.eval_tasks
        if (version, name) not in known
    ]
    return [*missing, *(said for one in done for said in _wrong(snapshot, one))]


def _wrong(snapshot: Snapshot, one: Evaluation) -> Iterator[str]:
    what = f"the evaluation of version {one.version} on {one.taskset}"
    own = {
        each.id
        for each in snapshot.assignments
        if (each.kind, each.taskset, each.explore_step) == ("eval", one.taskset, one.version)
    }
    rewards: dict[str, list[float]] = defaultdict(list)
    for sample in snapshot.samples:
        if sample.assignment_id in own and sample.state == "eval":
            rewards[sample.assignment_id].append(sample.reward or 0.0)
            if set(sample.versions) != {one.version}:
                yield _other_version(what, sample)
    num_tasks = snapshot.stage.eval_tasks.get(one.taskset)
    if not num_tasks == one.num_tasks == len(rewards) or one.num_failed:
        yield (
            f"{what} counts {one.num_tasks} tasks and {one.num_failed} failures, there are "
            f"samples of {len(rewards)}, and {num_tasks} tasks"
        )
    elif not isclose(one.reward, mean := fmean(map(fmean, rewards.values()))):
        yield f"{what} says {one.reward}, its samples {mean}"


def _other_version(what: str, sample: Sample) -> str:
    return f"{what} has a sample {sample.id} of version {sample.versions}"
