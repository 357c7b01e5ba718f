"""Trains the same model on the same problems with our learner, our services, verl's losses and TRL.

python -m benchmarks.algorithms.beside [--parts ours verl trl services large] [--steps 20]

All start from the same weights, take 128 rollouts a step (64 with the model of 30 million
parameters) and one update, and are evaluated greedily on the same held-out sums. The parts on edits
are of the longer task: 96 rows, two updates, sampled held-out answers. A finished course is a line
of benchmarks/results/algorithms_beside.jsonl and is not done again. TRL is installed into
build/peers/trl, outside of this environment. With `--report` nothing is run.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.algorithms.beside.course import (
    ADDITION,
    EDITS,
    HINTED,
    LARGE,
    OURS,
    SERVICES,
    Course,
    Courses,
    Key,
    print_courses,
)
from benchmarks.algorithms.beside.ours import NUM_STEPS

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks

ROOT = Path(__file__).resolve().parents[3]
ON_EDITS = ("grpo", "gspo", "rloo", "reinforceplusplus", "ipo", "simpo", "orpo")
PARTS = {
    "ours": (OURS, ADDITION, ("grpo", "gspo", "cispo")),
    "verl": ("verl's losses, plain loop", ADDITION, ("grpo", "gspo", "cispo")),
    "trl": ("TRL's GRPOTrainer", ADDITION, ("grpo",)),
    "services": (
        SERVICES,
        ADDITION,
        ("grpo", "gspo", "rloo", "reinforceplusplus"),
    ),
    "large": (OURS, LARGE, ("grpo", "gspo", "cispo")),
    "edits": (OURS, EDITS, ON_EDITS),
    "edits-services": (SERVICES, EDITS, ON_EDITS),
    "hints": (OURS, HINTED, ("sdpo",)),
    "hints-services": (SERVICES, HINTED, ("sdpo",)),
}
"""Contender, model and algorithms of each part."""


def main() -> None:
    """Runs missing courses and prints the table."""
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    courses = Courses(arguments.results)
    environment = dict(os.environ)
    if not arguments.report:
        work = arguments.work.resolve()
        for part in arguments.parts:
            missing = missing_of(part, courses, arguments.seeds)
            if missing:
                steps = arguments.steps or NUM_STEPS[PARTS[part][1]]
                make = _maker(part, work, steps, environment)
                _run(part, missing, courses, make)
    print_courses(list(courses.by_key.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, help="else 20, on edits 40")
    parser.add_argument("--report", action="store_true", help="only print what there is")
    parser.add_argument("--work", type=Path, default=ROOT / "build/algorithms_beside")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks/results" / "algorithms_beside.jsonl"
    )
    return parser.parse_args()


def missing_of(part: str, courses: Courses, seeds: Sequence[int]) -> list[Key]:
    """Returns the courses that a part has not run yet."""
    contender, model, algorithms = PARTS[part]
    keys = [(contender, algorithm, model, seed) for seed in seeds for algorithm in algorithms]
    return [key for key in keys if key not in courses.by_key]


def _run(part: str, missing: Sequence[Key], courses: Courses, make: Callable[..., Course]) -> None:
    for _, algorithm, _, seed in missing:
        course = make(algorithm=algorithm, seed=seed)
        courses.add(course)
        print(f"{part}, {algorithm}: {course.start:.3f} -> {course.end:.3f}", flush=True)


@cache
def _ranks() -> "Ranks":
    from benchmarks.gang import join_alone

    return join_alone()


def _maker(
    part: str, work: Path, num_steps: int, environment: Mapping[str, str]
) -> Callable[..., Course]:
    """Returns the function that makes a course; the start is there when it returns.

    Other processes get the `environment` of before: this one's says that it is in a gang.
    """
    ranks = _ranks()
    from benchmarks.algorithms.beside.ours import our_course, prepared_trainer

    _, model, _ = PARTS[part]
    trainer = prepared_trainer(work, model, ranks)
    if PARTS[part][0] == OURS:
        return lambda algorithm, seed: our_course(
            trainer, algorithm, model, seed=seed, num_steps=num_steps
        )
    if part == "verl":
        from benchmarks.algorithms.beside.plain_verl import VerlLoop

        return lambda algorithm, seed: VerlLoop(trainer, algorithm, seed=seed).run(model, num_steps)
    if PARTS[part][0] == SERVICES:
        from benchmarks.algorithms.beside.services import service_course

        return partial(
            service_course,
            job=trainer.job,
            model=model,
            num_steps=num_steps,
            environment=environment,
        )
    from benchmarks.algorithms.beside.trl_process import trl_course
    from benchmarks.overhead.beside_trl import installed

    folder = installed(ROOT / "build/peers/trl")
    return partial(
        trl_course,
        folder=folder,
        work=work,
        model=model,
        num_steps=num_steps,
        environment=environment,
    )


if __name__ == "__main__":
    main()
