"""Make the squares example's pictures and model under examples/squares/work, once.

python -m examples.squares.prepare [--seed 42] [--work DIR] [--shuffled]

With `--shuffled`, each row has the picture of another one: the control, which learns nothing.
"""

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path

from examples.squares.pictures import Row, make_pictures

HERE = Path(__file__).resolve().parent
SOURCES = ("prepare.py", "pictures.py", "model.py")
NOTE = "prepared.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=42, help="of the pictures and the model")
    parser.add_argument("--work", type=Path, default=HERE / "work", help="where to write")
    parser.add_argument("--shuffled", action="store_true", help="make the control")
    arguments = parser.parse_args()
    prepare(arguments.work, arguments.seed, shuffled=arguments.shuffled)


def prepare(work: Path, seed: int, *, shuffled: bool = False) -> None:
    """A note says how `work` was made; it stays empty until everything is there."""
    wanted = recipe(seed, shuffled=shuffled)
    note = work / NOTE
    if note.is_file() and note.read_text() == wanted:
        print(f"{work} is prepared already (seed {seed})")
        return
    if work.exists() and any(work.iterdir()) and not note.is_file():
        sys.exit(f"{work} holds something else: give an empty folder")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    note.touch()
    write_files(work, seed, shuffled=shuffled)
    note.write_text(wanted)


def write_files(directory: Path, seed: int, *, shuffled: bool) -> None:
    data = directory / "data"
    data.mkdir()
    pictures = make_pictures(seed, shuffled=shuffled)
    for name, rows in (("sft", pictures.sft), ("train", pictures.train), ("test", pictures.test)):
        write_rows(data / f"{name}.jsonl", rows)
        print(f"{name}.jsonl: {len(rows)} rows")
    from examples.squares.model import save_model  # seconds of imports that a second run spares

    save_model(directory / "model", seed)
    print(f"model: seed {seed}")


def write_rows(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def recipe(seed: int, *, shuffled: bool) -> str:
    """What decides the result: the seed and the code that made it."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES))
    made = {"seed": seed, "shuffled": shuffled, "sources": digest.hexdigest()}
    return json.dumps(made) + "\n"


if __name__ == "__main__":
    main()
