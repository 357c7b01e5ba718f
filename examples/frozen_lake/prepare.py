"""Writes rows of frozen lakes, each drawn by its size, share of ice and seed.

python -m examples.frozen_lake.prepare --out examples/frozen_lake/work
"""

import argparse
import json
import random
from pathlib import Path

SIZES = (3, 4, 5)
ICE_SHARES = (0.7, 0.8, 0.9)


def main() -> None:
    """Write `train.jsonl` and `test.jsonl`, which share no lake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("examples/frozen_lake/work"))
    parser.add_argument("--train", type=int, default=4000, help="lakes to train on")
    parser.add_argument("--test", type=int, default=1000, help="lakes to evaluate on")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "train.jsonl", range(given.train))
    write(given.out / "test.jsonl", range(given.train, given.train + given.test))


def write(path: Path, seeds: range) -> None:
    """A row for each seed."""
    dice = random.Random(0)
    with path.open("w") as file:
        for seed in seeds:
            row = {"size": dice.choice(SIZES), "p": dice.choice(ICE_SHARES), "seed": seed}
            file.write(json.dumps(row) + "\n")
    print(f"{path}: {len(seeds)} lakes")


if __name__ == "__main__":
    main()
