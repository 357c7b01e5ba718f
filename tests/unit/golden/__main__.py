"""Records the corpus again, or shows in what its texts differ from those of another commit.

python -m tests.unit.golden [SECTION ...] [--new-recipes]
python -m tests.unit.golden --diff [SECTION ...] [--base COMMIT]
python -m tests.unit.golden --text [SECTION ...]    # JSON: every result, whole
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.unit.golden import mutations
from tests.unit.golden.corpus import record, record_recipes, text_of
from tests.unit.golden.sections import SECTIONS
from tests.unit.golden.text_diff import NoTextsError, Texts, base_of, shown_diff, texts_of
from tests.unit.source_names import ROOT


def main() -> None:
    """Records or shows the sections that are named, or all."""
    arguments = _arguments()
    if arguments.new_recipes:
        record_recipes(mutations.new_recipes())
    texts = _texts(arguments.sections or list(SECTIONS))
    if arguments.text:
        sys.stdout.write(text_of(texts))
    elif arguments.diff:
        _show_diff(texts, arguments)
    else:
        for name, results in texts.items():
            record(name, results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--new-recipes", action="store_true", help="draw mutations again")
    what.add_argument("--diff", action="store_true", help="show what differs from --base")
    what.add_argument("--text", action="store_true", help="print the results as JSON")
    parser.add_argument("--base", metavar="COMMIT", help="default: where this branch left main")
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - SECTIONS.keys():
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    return arguments


def _texts(sections: list[str]) -> Texts:
    texts: Texts = {}
    for name in sections:
        with tempfile.TemporaryDirectory() as folder:
            texts[name] = SECTIONS[name](Path(folder))
    return texts


def _show_diff(texts: Texts, arguments: argparse.Namespace) -> None:
    try:
        base = arguments.base or base_of(ROOT)
        before = texts_of(base, arguments.sections, ROOT)
    except NoTextsError as error:
        sys.exit(str(error))
    sys.stdout.write((shown_diff(before, texts) or f"No case differs from {base}.") + "\n")


if __name__ == "__main__":
    main()
