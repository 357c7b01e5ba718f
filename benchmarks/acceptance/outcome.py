"""The outcome of each part, as JSON and as one page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from benchmarks.acceptance.parts import AcceptancePart

MAX_REASON = 300
NO_CUDA = (
    "torch of this environment uses no GPU, as that of `make setup`: name the programs of one with "
    "CUDA builds of torch, vllm and verl, as in `make gpu-acceptance BIN=/opt/cuda-env/bin`"
)


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


def not_run(part: AcceptancePart, reason: str) -> PartOutcome:
    """Returns the outcome of a part that cannot run here."""
    return PartOutcome(name=part.name, promise=part.promise, state=PartState.NOT_RUN, reason=reason)


def obstacle_to(part: AcceptancePart, *, num_gpus: int, num_usable: int) -> str:
    """Returns why a part cannot run with the GPUs that torch can use, of those that are there."""
    if part.num_gpus <= num_usable:
        return ""
    if num_gpus and not num_usable:
        return NO_CUDA
    have = {0: "no GPU", 1: "one GPU"}.get(num_usable, f"{num_usable} GPUs")
    wants = "" if num_usable == 0 else f", and the part needs {part.num_gpus}"
    return f"{have} on this machine{wants}"


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


def _row(part: PartOutcome) -> str:
    seconds = f"{part.seconds:.0f}" if part.seconds else "-"
    peak = "-" if part.peak_memory_mib is None else f"{part.peak_memory_mib:,}"
    return f"| {part.name} | {part.state} | {seconds} | {peak} | {part.promise} |"


def last_words(text: str) -> str:
    """Returns the end of what a command said, on one line."""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(said[-3:])[-MAX_REASON:]
