"""Writes the figures of README.md, docs/figures.md and docs/images.md from benchmarks/results.

python -m benchmarks.document README.md [--check]
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from trinity.runtime.doc_tables import fill_tables, write_page

RESULTS = Path(__file__).parent / "results"
SEEDS = (1, 2, 3)
SAME = ("same seed again", "trainer killed", "run killed")

Row = tuple[str, ...]


def main() -> None:
    """Writes the tables, or reports that they differ from the results."""
    write_page("Figures of the benchmarks, as Markdown.", render_page)


def render_page(text: str) -> str:
    """Returns the page with its tables filled from the results."""
    return fill_tables(text, _lines)


def _lines(name: str) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in TABLES[name]()]


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def _claims(name: str) -> dict[str, float]:
    return {claim["name"]: claim["value"] for claim in _result(name)["claims"]}


def _accuracies(claims: dict[str, float], when: str, digits: int) -> str:
    return ", ".join(f"{claims[f'accuracy at {when}, seed {seed}']:.{digits}f}" for seed in SEEDS)


def _same(claims: dict[str, float], what: str) -> str:
    kept = claims[f"same weights: {what}"], claims[f"same reward curve: {what}"]
    return "the same, bit for bit" if min(kept) >= 1 else "others"


def _figures() -> Iterator[Row]:
    job, commands, trl = (_claims(name) for name in ("main_job", "command_line", "beside_trl"))
    turns = _result("gpu_acceptance")["turns"]
    ends = {_same(job, what) for what in SAME}
    yield ("figure", "measured", "on")
    yield ("---", "---", "---")
    learnt = f"{_accuracies(job, 'start', 2)} to {_accuracies(job, 'end', 3)}"
    yield ("held-out accuracy of the demo, GRPO's start to end, three seeds", learnt, "2 cores")
    yield (
        "the demo from start to exit",
        f"{job['both stages, seconds (median)']:.0f} s",
        "2 cores",
    )
    yield (
        "its last weights when run again, with the trainer killed, with everything killed",
        " or ".join(sorted(ends)),
        "2 cores",
    )
    big, tiny = (trl[f"{size}: services at sync_offset 0 over TRL"] for size in ("big", "tiny"))
    yield (
        "a GRPO step over TRL's, 76 and 0.9 million parameters",
        f"{big:.2f} and {tiny:.1f}",
        "2 cores",
    )
    check = commands["trinity config check, 356 lines, wall seconds, least"]
    yield ("a configuration check", f"{check:.2f} s", "2 cores")
    step, training = turns["whole_step_seconds"]["median"], turns["whole_step_seconds"]["training"]
    yield (
        "a GRPO step of 256 samples by turns, the addition example; of it training",
        f"{step:.2f} s; {training:.2f} s",
        "one H200",
    )


def _main_job() -> Iterator[Row]:
    job = _claims("main_job")
    yield ("", "measured", "aim")
    yield ("---", "---", "---")
    yield (
        "held-out accuracy at the start of `rft`, seeds 1, 2, 3 (n = 1,024)",
        _accuracies(job, "start", 2),
        "0.5 to 0.75",
    )
    yield ("held-out accuracy at its end", _accuracies(job, "end", 3), "at least 0.85")
    both = job["both stages, seconds (median)"]
    yield ("both stages, start to exit (median of the three)", f"{both:.0f} s", "300 s")
    stack, first = (
        job[f"{name}, seconds"]
        for name in ("stack without engines", "first rollout after the stage starts")
    )
    yield ("broker, database and services up (median of the three)", f"{stack:.1f} s", "5 s")
    yield ("first batch of rollouts after stage `rft` opens", f"{first:.1f} s", "45 s")
    yield ("memory of the buffer's process", f"{job['memory of the buffer, MB']:.0f} MB", "250 MB")
    for what, words in zip(
        SAME,
        (
            "final weights and reward curve, same seed twice",
            "likewise with the training rank killed",
            "likewise with everything killed and resumed",
        ),
        strict=True,
    ):
        yield (words, _same(job, what), "the same")


def _squares() -> Iterator[Row]:
    record = _result("squares")
    runs = [record[name] for name in ("pictures", "shuffled pictures")]
    yield ("", "pictures", "shuffled pictures")
    yield ("---", "---", "---")
    for step in runs[0]["held_out"]:
        when = "before `rft`" if step == "0" else f"after {step} steps of it"
        shown = (f"{run['held_out'][step]:.3f}" for run in runs)
        yield (f"held-out accuracy {when} (n = {runs[0]['num_held_out']})", *shown)
    for name, values in (
        ("mean reward of its first and last ten steps", (_ends(run["rewards"]) for run in runs)),
        ("processor time, all processes", (f"{run['processor_seconds']:.0f} s" for run in runs)),
        (
            "from start to exit",
            (f"{run['seconds']['total']:.0f} s" for run in runs),
        ),
    ):
        yield (name, *values)


def _ends(rewards: list[float], steps: int = 10) -> str:
    return f"{fmean(rewards[:steps]):.2f}, {fmean(rewards[-steps:]):.2f}"


TABLES = {"figures": _figures, "main job": _main_job, "squares": _squares}

if __name__ == "__main__":
    main()
