"""Seconds that `trinity --help` and `trinity config check` take, as whole processes.

python -m benchmarks.command_line [--runs 20] [--json FILE]

The file that is checked has some 360 lines: every value of the gsm8k example, written out.
Counted are user and system seconds, which other work on the machine disturbs least, and seconds on
the wall. Bytecode is kept, as in an installation. Beside them stand the start of Python alone, and
importing pydantic, typer and yaml, which no command that reads YAML into sections can do without.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.table import PerformanceClaim, print_claims

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = "examples/gsm8k/gsm8k.yaml"
AIM_SECONDS = 0.6
TRINITY = (sys.executable, "-m", "trinity.cli.main")


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of one process."""

    cpu: float
    """User and system seconds."""
    wall: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/command_line.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        file, environment = _prepared(Path(directory))
        num_lines = len(file.read_text().splitlines())
        check = f"trinity config check, {num_lines} lines"
        commands: dict[str, Sequence[str]] = {
            "trinity --help": (*TRINITY, "--help"),
            check: (*TRINITY, "config", "check", str(file)),
            "python, doing nothing": (sys.executable, "-c", "pass"),
            "importing pydantic, typer, yaml": (
                sys.executable,
                "-c",
                "import pydantic.main, pydantic.types, typer, yaml",
            ),
        }
        spent = _measured(commands, environment, arguments.runs)
    figures = {name: _summary(some) for name, some in spent.items()}
    claims = [
        PerformanceClaim(
            f"{name}, {kind} seconds, {which}", figures[name][kind][which], AIM_SECONDS, "<="
        )
        for name in ("trinity --help", check)
        for kind, which in (("cpu", "median"), ("wall", "least"))
    ]
    print_claims(claims)
    for name, figure in figures.items():
        print(f"{name}: {json.dumps(figure)}")
    record = {
        "runs": arguments.runs,
        "load_average": os.getloadavg()[0],
        "seconds": figures,
        "claims": [claim.as_json() for claim in claims],
    }
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")


def _prepared(directory: Path) -> tuple[Path, Mapping[str, str]]:
    """The file, and an environment in which each process finds the bytecode of the one before."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    show = (*TRINITY, "config", "show", EXAMPLE)
    done = subprocess.run(
        show, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    file = directory / "gsm8k.yaml"
    file.write_text(done.stdout)
    return file, environment


def _measured(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], num_runs: int
) -> dict[str, list[Spent]]:
    """Measures commands in turns, so that a disturbance affects all alike."""
    spent: dict[str, list[Spent]] = {name: [] for name in commands}
    for turn in range(num_runs + 1):
        for name, command in commands.items():
            one = _spent_by(command, environment)
            if turn:  # the first run of each makes bytecode
                spent[name].append(one)
    return spent


def _spent_by(command: Sequence[str], environment: Mapping[str, str]) -> Spent:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Spent(cpu=cpu, wall=wall)


def _summary(spent: Sequence[Spent]) -> dict[str, dict[str, float]]:
    each = [asdict(process) for process in spent]
    return {
        kind: {
            "median": round(statistics.median(process[kind] for process in each), 3),
            "least": round(min(process[kind] for process in each), 3),
            "most": round(max(process[kind] for process in each), 3),
        }
        for kind in ("cpu", "wall")
    }


if __name__ == "__main__":
    main()
