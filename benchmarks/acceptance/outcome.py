"""The outcome of each part, as JSON and as one page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from benchmarks.acceptance.parts import AcceptancePart

MAX_REASON = 300


class PartState(StrEnum):
    """The ways in which a part ends."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """A part, what came of it, and its figures."""

    name: str
    promise: str
    state: PartState
    reason: str = ""
    """Why it failed or was not run."""
    seconds: float = 0.0
    peak_memory_mib: int | None = None
    """The most memory of the GPU in use, by its driver; None where it is not measured."""
    figures: dict[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Returns it for the committed results."""
        return asdict(self)


def not_run(part: AcceptancePart, num_gpus: int) -> PartOutcome:
    """Returns the outcome of a part that needs more GPUs than there are."""
    have = {0: "no GPU", 1: "one GPU"}.get(num_gpus, f"{num_gpus} GPUs")
    wants = "" if num_gpus == 0 else f", and the part needs {part.num_gpus}"
    return PartOutcome(
        name=part.name,
        promise=part.promise,
        state=PartState.NOT_RUN,
        reason=f"{have} on this machine{wants}",
    )


def page_of(outcomes: Sequence[PartOutcome], *, machine: str) -> str:
    """Returns the page: one line a part, then why parts failed or were not run."""
    counts = {state: sum(part.state is state for part in outcomes) for state in PartState}
    counted = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [
        "# Acceptance on a GPU",
        "",
        f"{machine}: {counted}.",
        "",
        "| part | outcome | seconds | peak MiB | promise |",
        "|---|---|---|---|---|",
        *(_row(part) for part in outcomes),
    ]
    reasons = [f"- **{part.name}**: {part.reason}" for part in outcomes if part.reason]
    return "\n".join([*lines, *(["", *reasons] if reasons else []), ""])


def _row(one: PartOutcome) -> str:
    seconds = f"{one.seconds:.0f}" if one.seconds else "-"
    peak = "-" if one.peak_memory_mib is None else f"{one.peak_memory_mib:,}"
    return f"| {one.name} | {one.state} | {seconds} | {peak} | {one.promise} |"


def last_words(text: str) -> str:
    """Returns the end of what a command said, on one line."""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(said[-3:])[-MAX_REASON:]
