"""Seconds that group advantages take for 100,000 experiences of 512 tokens.

python -m benchmarks.group_advantages [--runs 5] [--json FILE]

Timed is what lies between rewards and the advantage of every token: the function itself, as the
buffer's pipeline calls it, and spreading its numbers over the tokens. The limit beside each figure
is that spreading alone, which nothing that writes an advantage a token can do without.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.table import PerformanceClaim, print_claims
from trinity.algorithm.advantage import ADVANTAGE_PATHS, ADVANTAGES
from trinity.algorithm.advantage.samples import Samples

ROOT = Path(__file__).resolve().parent.parent
NUM_EXPERIENCES, NUM_TOKENS = 100_000, 512
RUNS_OF_A_TASK, STEPS_OF_A_RUN = 8, 5
AIM_SECONDS = 0.3
MULTI_STEP = ("gigpo", "step_wise_grpo")
VARIANTS: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in ADVANTAGE_PATHS),
    ("grpo", {"std_cal_level": "batch", "rank_penalty": 0.3}),
    ("grpo", {"std_threshold": 0.1, "duplicate_experiences": True}),
    ("opmd", {"opmd_baseline": "logavgexp"}),
    ("rec", {"drop": "balance", "std_normalize": True}),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "benchmarks/results/group_advantages.json"
    )
    arguments = parser.parse_args()
    tokens_NT = np.zeros((NUM_EXPERIENCES, NUM_TOKENS), dtype=np.float32)
    spreading = _median(
        lambda: _spread(np.ones(NUM_EXPERIENCES), tokens_NT), num_runs=arguments.runs
    )
    rows = [_measure(name, own, tokens_NT, arguments.runs) for name, own in VARIANTS]
    _print(rows, spreading)
    claims = [
        PerformanceClaim(
            f"{name}, seconds for {NUM_EXPERIENCES:,} experiences", seconds, AIM_SECONDS, "<="
        )
        for name, _, seconds in rows
    ]
    print_claims(claims)
    record = {
        "spreading_alone_seconds": spreading,
        "functions": {
            name: {"function_seconds": function, "seconds": seconds, "ratio": seconds / spreading}
            for name, function, seconds in rows
        },
        "claims": [claim.as_json() for claim in claims],
    }
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")


def _measure(
    name: str, arguments: dict[str, object], tokens_NT: npt.NDArray[np.float32], num_runs: int
) -> tuple[str, float, float]:
    """Seconds of the function, and of it with what follows."""
    function = ADVANTAGES.get(name)
    samples = _samples(STEPS_OF_A_RUN if name in MULTI_STEP else 1)
    alone = _median(lambda: function(samples, **arguments), num_runs=num_runs)
    both = _median(
        lambda: _spread(function(samples, **arguments).values, tokens_NT), num_runs=num_runs
    )
    given = ", ".join(f"{key} {value}" for key, value in arguments.items())
    return f"{name} ({given})" if given else name, alone, both


def _samples(num_steps: int) -> Samples:
    """Tasks with eight runs each; rewards of 0 and 1, so that some groups have no spread."""
    rng = np.random.default_rng(1)
    numbers_N = np.arange(NUM_EXPERIENCES)
    return Samples(
        rewards=(rng.random(NUM_EXPERIENCES) < 0.3).astype(np.float64),
        groups=numbers_N // (RUNS_OF_A_TASK * num_steps),
        runs=numbers_N // num_steps % RUNS_OF_A_TASK,
        steps=numbers_N % num_steps,
        lots=rng.random(NUM_EXPERIENCES),
        mean_logprobs=-rng.random(NUM_EXPERIENCES),
        step_rewards=rng.random(NUM_EXPERIENCES),
        states=rng.integers(0, NUM_EXPERIENCES // 4, NUM_EXPERIENCES),
    )


def _spread(values_N: npt.NDArray[np.float64], tokens_NT: npt.NDArray[np.float32]) -> None:
    """Into memory that is there: what a page costs for the first time is not the function's."""
    np.copyto(tokens_NT, values_N[:, None], casting="same_kind")


def _median(call: Callable[[], object], *, num_runs: int) -> float:
    call()
    seconds = []
    for _ in range(num_runs):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _print(rows: list[tuple[str, float, float]], spreading: float) -> None:
    table = Table("function", "alone, s", "with tokens, s", "x limit", title="group advantages")
    for name, function, seconds in rows:
        table.add_row(name, f"{function:.4f}", f"{seconds:.3f}", f"{seconds / spreading:.2f}")
    Console(width=120).print(table)
    print(f"limit: spreading alone, {spreading:.3f} s")


if __name__ == "__main__":
    main()
