"""Make the addition example's data and model under examples/addition/work, once.

python -m examples.addition.prepare [--seed 42] [--work DIR]

Run again with the same seed it does nothing; with another seed it makes all files again.
"""

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path

from examples.addition.problems import Row, make_problems

HERE = Path(__file__).resolve().parent
SOURCES = ("prepare.py", "problems.py", "model.py")
NOTE = "prepared.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--seed", type=int, default=42, help="of the split, the order and the model"
    )
    parser.add_argument("--work", type=Path, default=HERE / "work", help="where to write")
    arguments = parser.parse_args()
    prepare(arguments.work, arguments.seed)


def prepare(work: Path, seed: int) -> None:
    """A note says how `work` was made; it stays empty until everything is there."""
    wanted = recipe(seed)
    note = work / NOTE
    if note.is_file() and note.read_text() == wanted:
        print(f"{work} is prepared already (seed {seed})")
        return
    if work.exists() and any(work.iterdir()) and not note.is_file():
        sys.exit(f"{work} holds something else: give an empty folder")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    note.touch()
    write_files(work, seed)
    note.write_text(wanted)


def write_files(directory: Path, seed: int) -> None:
    data = directory / "data"
    data.mkdir()
    problems = make_problems(seed)
    for name, rows in (("sft", problems.sft), ("train", problems.train), ("test", problems.test)):
        write_rows(data / f"{name}.jsonl", rows)
        print(f"{name}.jsonl: {len(rows)} rows")
    from examples.addition.model import save_model  # seconds of imports that a second run spares

    save_model(directory / "model", seed)
    print(f"model: seed {seed}")


def write_rows(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def recipe(seed: int) -> str:
    """What decides the result: the seed and the code that made it."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES))
    return json.dumps({"seed": seed, "sources": digest.hexdigest()}) + "\n"


if __name__ == "__main__":
    main()
