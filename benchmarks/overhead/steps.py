"""The figures of a contender: the time of each step, and of the parts of a step."""

import json
import statistics
from dataclasses import asdict, dataclass, field

from benchmarks.overhead.job import NUM_UNCOUNTED


@dataclass(slots=True)
class Steps:
    """Seconds, a number a step."""

    whole: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, whole: float, **parts: float) -> None:
        """Note one step."""
        self.whole.append(whole)
        for name, seconds in parts.items():
            self.parts.setdefault(name, []).append(seconds)

    @property
    def median(self) -> float:
        """The median of the steps that count."""
        return statistics.median(self.whole[NUM_UNCOUNTED:])

    def median_parts(self) -> dict[str, float]:
        """The median of each part."""
        return {name: statistics.median(v[NUM_UNCOUNTED:]) for name, v in self.parts.items()}

    def to_json(self) -> str:
        """One line, for the process that asked."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Steps":
        """The inverse of `to_json`."""
        return cls(**json.loads(line))
