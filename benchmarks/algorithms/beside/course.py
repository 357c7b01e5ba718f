"""The course of a contender: its held-out accuracy by train step, and the seconds until then."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table

OURS, SERVICES = "ours", "the services, with vLLM"
"""Contenders."""
ADDITION, LARGE, EDITS, HINTED = "addition", "30 million", "edits", "edits, hinted"
"""Models; each has its task."""
Key = tuple[str, str, str, int]
"""Contender, algorithm, model and seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One run of a contender; written as a line of JSON."""

    contender: str
    algorithm: str
    model: str
    seed: int
    num_rows: int
    """Of a train step."""
    start: float
    """Held-out accuracy before."""
    accuracies: Mapping[int, float]
    """Held-out, by train step."""
    seconds: Mapping[int, float]
    """Processor seconds of rollouts and training until then, without evaluations."""
    wall_seconds: Mapping[int, float] = field(default_factory=dict)
    """Seconds by the clock, for those who work in several processes."""
    whole_seconds: float = 0.0
    """Processor seconds of everything: imports, evaluations, and services."""

    @property
    def key(self) -> Key:
        """The values that tell it from others."""
        return self.contender, self.algorithm, self.model, self.seed

    @property
    def end(self) -> float:
        """Held-out accuracy after the last step."""
        return self.accuracies[max(self.accuracies)]

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Reads what `to_json` wrote."""
        values: dict[str, Any] = json.loads(line)
        for name in ("accuracies", "seconds", "wall_seconds"):
            values[name] = {int(step): value for step, value in values[name].items()}
        return cls(**values)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


class Courses:
    """The file of finished courses: those in it are not run again.

    courses = Courses(path)
    if key not in courses.by_key:
        courses.add(course)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        found = [Course.from_json(line) for line in lines]
        self.by_key = {course.key: course for course in found}

    def add(self, course: Course) -> None:
        """Notes a finished course."""
        self.by_key[course.key] = course
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(course.to_json() + "\n")


def print_courses(courses: Sequence[Course]) -> None:
    """A row a course: accuracy by step, and the time of the steps."""
    steps = sorted({step for course in courses for step in course.accuracies})
    table = Table("model", "algorithm", "contender", "start", *map(str, steps), "seconds", "whole")
    for course in sorted(courses, key=lambda course: (course.model, course.algorithm)):
        points = [course.accuracies.get(step) for step in steps]
        seconds = course.seconds or course.wall_seconds
        table.add_row(
            course.model,
            course.algorithm,
            course.contender,
            f"{course.start:.3f}",
            *("" if point is None else f"{point:.3f}" for point in points),
            f"{seconds[max(seconds)]:.1f}{'' if course.seconds else ' by the clock'}",
            f"{course.whole_seconds:.0f}",
        )
    Console(width=130).print(table)
