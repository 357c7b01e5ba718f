"""The parts of the acceptance: what is run for each, and what it needs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples/addition/addition.yaml"
ON_ONE_GPU = ("cluster.node_num=1", "cluster.gpu_per_node=1", "stages[1].mode=colocate")
ON_TWO_GPUS = ("cluster.node_num=1", "cluster.gpu_per_node=2")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePart:
    """One promise, and the command that shows it on this machine."""

    name: str
    promise: str
    argv: tuple[str, ...]
    num_gpus: int = 1
    minutes: float = 20.0
    """Longest time; then it has failed."""
    measures_memory: bool = False
    """True if the peak of the GPU's memory is a figure of it."""
    figures: Path | None = None
    """JSON that the command leaves, relative to the folder of the results."""


def parts_of(size: str, folder: Path) -> tuple[AcceptancePart, ...]:
    """Returns all parts, in order; `folder` takes what they leave."""
    return (*_tested_parts(), *_run_parts(size, folder))


def _tested_parts() -> tuple[AcceptancePart, ...]:
    """Returns the parts that tests of the repository show."""
    return (
        _tests(
            "engine",
            "the engine generates, scores, repeats draws and takes weights, as on a processor",
            "tests/integration/explorer/test_engine.py",
        ),
        _tests(
            "attention",
            "packed rows give the outputs and gradients of padded ones, by the GPU's attention",
            "tests/integration/trainer/test_packed_rows.py",
            "tests/integration/trainer/test_gpu_attention.py",
        ),
        _tests(
            "head",
            "the head in chunks gives the loss and gradients of the whole head",
            "tests/integration/trainer/test_chunked_head.py",
        ),
        _tests(
            "experts",
            "the experts that the engine told are chosen again in training",
            "tests/integration/trainer/test_routed_experts.py",
        ),
        _tests(
            "sequences",
            "two ranks that share sequences compute what one rank does",
            "tests/integration/trainer/test_two_ranks.py",
            num_gpus=2,
        ),
    )


def _run_parts(size: str, folder: Path) -> tuple[AcceptancePart, ...]:
    """Returns the parts that run the system."""
    return (
        AcceptancePart(
            name="turns",
            promise="engine and trainer use one GPU by turns; the peak of its memory is measured",
            argv=_run(folder, "turns", *ON_ONE_GPU, steps=3),
            measures_memory=True,
        ),
        AcceptancePart(
            name="transfer",
            promise="weights go from the trainer's memory to the engine by NCCL",
            argv=_run(folder, "transfer", *ON_TWO_GPUS, "synchronizer.sync_method=nccl", steps=3),
            num_gpus=2,
        ),
        AcceptancePart(
            name="learning",
            promise="a model that is made here learns to add; the whole example, by turns",
            argv=_run(folder, "learning", *ON_ONE_GPU),
            minutes=60.0,
        ),
        AcceptancePart(
            name="speed",
            promise="tokens a second, MFU and weight sync beside the device's own limits",
            argv=(
                *(sys.executable, "-m", "benchmarks.gpu", "--size", size),
                *("--json", str(folder / "speed.json")),
            ),
            minutes=30.0,
            measures_memory=True,
            figures=Path("speed.json"),
        ),
    )


def _tests(name: str, promise: str, *paths: str, num_gpus: int = 1) -> AcceptancePart:
    """Returns a part that is tests which pass on processors, run where there is a GPU.

    Warnings are no failures there: those of libraries for GPUs are others than the suite knows.
    """
    options = ("-n", "0", "-q", "-W", "ignore", "-p", "no:cacheprovider")
    argv = (sys.executable, "-m", "pytest", *options, *paths)
    return AcceptancePart(name=name, promise=promise, argv=argv, num_gpus=num_gpus)


def _run(folder: Path, name: str, *overrides: str, steps: int | None = None) -> tuple[str, ...]:
    """Returns a run of the addition example in a folder of its own."""
    limit: Sequence[str] = () if steps is None else ("--max-steps", str(steps))
    place = f"checkpoint_root_dir={folder / name}"
    return (sys.executable, "-m", "trinity", "run", EXAMPLE, *limit, place, *overrides)
