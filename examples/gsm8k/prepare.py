"""Turn GSM8K's own jsonl files into rows with a question and the bare number as its answer.

python -m examples.gsm8k.prepare PATH/TO/grade_school_math/data [--out examples/gsm8k/work/data]
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

MARK = "####"
SPLITS = ("train", "test")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder with train.jsonl and test.jsonl")
    parser.add_argument("--out", type=Path, default=Path("examples/gsm8k/work/data"))
    arguments = parser.parse_args()
    for split in SPLITS:
        source = arguments.source / f"{split}.jsonl"
        if not source.is_file():
            sys.exit(f"there is no {source}: give the folder that holds GSM8K's jsonl files")
        num_rows = convert(source, arguments.out / f"{split}.jsonl")
        print(f"{arguments.out / source.name}: {num_rows} rows")


def convert(source: Path, target: Path) -> int:
    """Write the rows of one split; returns how many."""
    rows = list(read_rows(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def read_rows(source: Path) -> Iterator[dict[str, str]]:
    """The worked solution is dropped: reinforcement needs the result alone."""
    for number, line in enumerate(source.read_text().splitlines(), start=1):
        row = json.loads(line)
        _, mark, result = row["answer"].rpartition(MARK)
        if not mark:
            sys.exit(f"{source}, line {number}: the answer has no `{MARK} <number>` at its end")
        yield {"question": row["question"], "answer": result.strip().replace(",", "")}


if __name__ == "__main__":
    main()
