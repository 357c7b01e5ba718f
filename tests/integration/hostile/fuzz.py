"""A hundred thousand malformed requests to a running stack, and what they did to it.

python -m tests.integration.hostile.fuzz --requests 100000
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.integration.hostile.arena import Arena, arena_in
from tests.integration.hostile.attack import Attack, Code, Outcome
from tests.integration.hostile.victim import known_values
from tests.integration.hostile.vitals import SERVICES, ValidCalls, Vitals
from tests.support.model_free.experiment import experiment_plan

LOOKS = ("warm", "half", "most", "after")
"""When memory is looked at: after each quarter of the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an attack did."""

    seconds: float
    codes: Counter[tuple[str, Code]]
    wrong: list[Outcome]
    vitals: dict[str, dict[str, Vitals]]
    """Of each service `before`, and at each of the looks."""

    @property
    def num_requests(self) -> int:
        return self.codes.total()


async def attack(arena: Arena, *, num_requests: int, seed: int) -> Findings:
    """Make the requests of a seed."""
    known = await known_values(arena.at, experiment_plan(arena.root, name=f"victim-{seed}"))
    vitals = {"before": arena.vitals}
    begun = time.monotonic()
    async with Attack(arena.at, seed=seed, known=known) as attack:
        for place, look in enumerate(LOOKS):
            done = num_requests * place // len(LOOKS)
            await attack.go_on(num_requests * (place + 1) // len(LOOKS) - done)
            vitals[look] = arena.vitals
    seconds = time.monotonic() - begun
    return Findings(seconds=seconds, codes=attack.codes, wrong=attack.wrong, vitals=vitals)


def report(findings: Findings) -> str:
    """The findings as text."""
    lines = [f"{findings.num_requests} requests in {findings.seconds:.0f} s"]
    for name in SERVICES:
        own = {code.name: n for (one, code), n in findings.codes.items() if one == name}
        told = ", ".join(f"{code} {n}" for code, n in sorted(own.items()))
        lines.append(f"{name}: {told}")
        for when, vitals in findings.vitals.items():
            now = vitals[name]
            lines.append(
                f"  {when}: {now.mebibytes:.0f} MiB, {now.num_files} files, "
                f"{now.num_log_lines} lines of log"
            )
    lines.append(f"{len(findings.wrong)} wrong answers")
    lines += [f"  {one.method.name}: {one.code.name} {one.details}" for one in findings.wrong[:20]]
    return "\n".join(lines)


def _speed(valid: ValidCalls) -> str:
    return (
        f"{len(valid.seconds)} valid calls: median {valid.median * 1000:.0f} ms, "
        f"slowest {valid.slowest * 1000:.0f} ms"
    )


async def _attack_anew(num_requests: int, seed: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="trinity-hostile-") as root:
        async with arena_in(Path(root)) as arena, arena.unharmed("requests") as valid:
            findings = await attack(arena, num_requests=num_requests, seed=seed)
            sys.stdout.write(f"{report(findings)}\n{_speed(valid)}\n")
    return not findings.wrong


def main() -> int:
    """Attack a stack of its own and say what came of it; 1 for a wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    return int(not asyncio.run(_attack_anew(arguments.requests, arguments.seed)))


if __name__ == "__main__":
    sys.exit(main())
