"""Sends problems to a buffer: python -m examples.submitted_tasks.submit --buffer HOST:PORT."""

import argparse
import random

from trinity.client import Tasksets

NUM_PROBLEMS = 2_000


def main() -> None:
    """Submit sums, and say what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--buffer", required=True, help="the buffer's address")
    parser.add_argument("--name", default="sums")
    given = parser.parse_args()
    with Tasksets(given.buffer) as tasksets:
        done = tasksets.submit(given.name, problems(seed=1))
    print(f"{done.num_stored} stored, {done.num_refused} refused")
    for refusal in done.refused:
        print(f"  row {refusal.index}: {refusal.reason}")
    if more := done.num_refused - len(done.refused):
        print(f"  and {more} more")


def problems(seed: int) -> list[dict[str, object]]:
    """Sums of two two-digit numbers."""
    chance = random.Random(seed)
    pairs = [(chance.randint(10, 99), chance.randint(10, 99)) for _ in range(NUM_PROBLEMS)]
    return [{"question": f"{a}+{b}=", "answer": str(a + b)} for a, b in pairs]


if __name__ == "__main__":
    main()
