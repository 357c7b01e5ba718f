"""Writes the ids of files and functions of veRL, by which changed ones of a copy are known.

git clone https://github.com/verl-project/verl
git -C verl fetch origin refs/pull/623/head:refs/pull/623/head
git clone https://github.com/hiyouga/EasyR1
python -m benchmarks.verl_ids verl EasyR1

Every version in the history of its main branch, its releases and its tags counts, so that a copy
of any day is compared with veRL's code of that day. So does the first code of DAPO, with which its
authors trained: pull request 623, which many projects started from.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from trinity.verl.easy_r1 import CHANGING
from trinity.verl.fork_functions import FILES, functions_of

PLACES = (
    *FILES,
    *CHANGING,
    "verl/protocol.py",
    "verl/trainer/main_ppo.py",
    "verl/trainer/ppo/reward.py",
    "verl/utils/dataset/rl_dataset.py",
    "verl/utils/reward_score",
    "verl/utils/torch_functional.py",
    "verl/workers/critic/dp_critic.py",
    "verl/workers/fsdp_workers.py",
    "verl/workers/reward_manager",
)
_DAPO = "refs/pull/623/head"
_REFS = re.compile(r"refs/(tags/.*|(heads|remotes/origin)/(main|release/.*|v\d.*))")
_FOLDER = Path(__file__).parent.parent / "trinity" / "verl"


def main() -> None:
    """Adds the versions of the clones to both files."""
    blobs = {found for clone in sys.argv[1:] for found in versions(Path(clone))}
    kept = (_FOLDER / "file_ids.txt").read_text().split()
    ids = sorted({*kept, *(blob[:12] for _, blob, _ in blobs)})
    (_FOLDER / "file_ids.txt").write_text("\n".join(ids) + "\n")
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    easy = {clone for file, _, clone in blobs if file == CHANGING[0]}
    for file, blob, clone in sorted(blobs):
        if file in FILES and clone not in easy:
            text = git(clone, "cat-file", "blob", blob)
            for name, number in functions_of(text).items():
                found[Path(file).name, name].add(number)
    rows = [" ".join((*key, *sorted(numbers))) for key, numbers in sorted(found.items())]
    (_FOLDER / "function_ids.txt").write_text("\n".join(rows) + "\n")
    print(f"{len(ids)} files, {sum(map(len, found.values()))} versions of {len(found)} functions")


def versions(clone: Path) -> set[tuple[str, str, Path]]:
    """The files of a clone's history: path, Git's id, and the clone; of a pull request its loop."""
    named = git(clone, "for-each-ref", "--format=%(refname)").split()
    refs = [ref for ref in named if _REFS.fullmatch(ref)]
    found = _logged(clone, refs, PLACES)
    return found | (_logged(clone, [_DAPO], FILES) if _DAPO in named else set())


def _logged(clone: Path, refs: list[str], places: tuple[str, ...]) -> set[tuple[str, str, Path]]:
    options = ("--raw", "--no-abbrev", "--format=", "--no-renames", "-m")
    raw = git(clone, "log", *refs, *options, "--", *places)
    rows = (line.split() for line in raw.splitlines() if line.endswith(".py"))
    return {(row[5], row[3], clone) for row in rows if set(row[3]) != {"0"}}


def git(clone: Path, *arguments: str) -> str:
    """Returns the output of Git in a clone."""
    command = ["git", "-C", str(clone), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
