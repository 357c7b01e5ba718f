"""Records the corpus again, or shows one file that a recipe or a snippet makes.

python -m tests.unit.golden [SECTION ...] [--new-recipes]
python -m tests.unit.golden --show "012 addition"    # its outcome, whole: compare two commits
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import yaml

from tests.unit.golden import mutations
from tests.unit.golden.adapters import surroundings
from tests.unit.golden.corpus import RECORDED, record, recorded, text_of
from tests.unit.golden.outcomes import outcome
from tests.unit.golden.sections import RECIPES, SECTIONS
from tests.unit.golden.yaml_files import VARIABLES, snippets
from tests.unit.source_names import ROOT


def main() -> None:
    """Write the sections that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--new-recipes", action="store_true", help="draw mutations again")
    parser.add_argument("--show", metavar="CASE", help="print a case of `mutations` or `yaml`")
    arguments = parser.parse_args()
    if arguments.show is not None:
        sys.stdout.write(shown(arguments.show))
        return
    if unknown := set(arguments.sections) - SECTIONS.keys():
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    if arguments.new_recipes or not (RECORDED / f"{RECIPES}.json").exists():
        record(RECIPES, mutations.new_recipes())
    for name in arguments.sections or SECTIONS:
        begun = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            file = record(name, SECTIONS[name](Path(folder)))
        seconds = time.process_time() - begun
        sys.stdout.write(f"{file.name:20} {file.stat().st_size:9,} bytes {seconds:6.1f} s\n")


def shown(case: str) -> str:
    """The text of the case's file, and what it comes to with nothing left out."""
    with tempfile.TemporaryDirectory() as folder, surroundings(ROOT, VARIABLES):
        file = Path(folder) / "x.yaml"
        file.write_text(_text_of_case(case), encoding="utf-8")
        return file.read_text(encoding="utf-8") + "\n" + text_of(outcome(file))


def _text_of_case(case: str) -> str:
    if case in (known := snippets()):
        return known[case]
    recipe = recorded(RECIPES)[int(case.split()[0])]
    return yaml.safe_dump(mutations.mutated(mutations.bases()[recipe["base"]], recipe))


if __name__ == "__main__":
    main()
