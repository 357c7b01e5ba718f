"""A matrix of mutants and the tests that find them; test functions that can go without a loss.

python -m benchmarks.mutants_matrix find --of config --num 150 --seed 1    # the matrix of a sample
python -m benchmarks.mutants_matrix spare --of config                      # chooses functions by it
python -m benchmarks.mutants_matrix judge --of config --num 80 --seed 2    # tries others without

Each mutant has a process, forked after the tests were imported. Tests that reach few functions come
first; a mutant is done once `ENOUGH` test functions found it, or after its seconds. So a function
is spared only for mutants that others are known to find. The judge takes mutants of the functions
that spared tests reach, tries them by all other tests first, and names those that only spared ones
find. Files are in build/mutants: <set>.<seed>.jsonl is a matrix, <set>.txt the functions to spare,
<set>.reached.json the functions that tests reach: remove it when code or tests have changed.
"""

import argparse
import gc
import json
import os
import random
import signal
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import pytest

from benchmarks.mutants import (
    ROOT,
    Applied,
    Mutant,
    MutantOutcomes,
    MutantRunner,
    all_mutants,
    failure,
    module_tests,
)
from benchmarks.mutants_targets import TARGETS

FOLDER = ROOT / "build/mutants"
ENOUGH = 6
KEPT = ("against", "attack", "control", "golden", "guarantee", "hostile", "secret", "secur")
"""Tests that stay whatever they find, by a part of their path or name."""


def function_of(item: str) -> str:
    """Returns the id of a test without its parameters."""
    return item.partition("[")[0]


class MatrixRunner(MutantRunner):
    """Writes a line for each mutant: the tests that find it, of those that were run."""

    def __init__(
        self, mutants: Sequence[Mutant], modules: Set[str], given: argparse.Namespace
    ) -> None:
        super().__init__(mutants, MutantOutcomes(FOLDER / "none"), modules)
        self._path, self._seconds = FOLDER / f"{given.of}.{given.seed}.jsonl", given.seconds
        self._reached_path = FOLDER / f"{given.of}.reached.json"
        self._num, self._seed = given.num, given.seed
        self._spared: Set[str] = set()
        if given.do == "judge":
            self._spared = set((FOLDER / f"{given.of}.txt").read_text().split())
            self._path = FOLDER / f"{given.of}.judged.{given.seed}.jsonl"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.freeze()
        self._read_reached(session.items)
        reached = [mutant for mutant in self._mutants if self._tests_of(mutant, session.items)]
        print(f"\n{len(session.items)} tests reach {len(reached)} mutants", flush=True)
        sample = random.Random(self._seed).sample(reached, min(self._num, len(reached)))
        with self._path.open("w", encoding="utf-8") as file:
            for mutant in sample:
                found = self._killers(mutant, session.items)
                file.write(json.dumps(found) + "\n")
                file.flush()
        return True

    def _read_reached(self, items: Sequence[pytest.Item]) -> None:
        """Runs all tests once in another process: tests that fail there find nothing."""

        def run(say: Callable[[Any], None]) -> None:
            for number, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
                self._reached.clear()
                if self._run_once(number, item, following) is None:
                    say([[*place, *test] for place, (test,) in self._reached.items()])

        if not self._reached_path.exists():
            lines = [line for lines in in_child(run, seconds=3600) for line in lines]
            self._reached_path.write_text(json.dumps(lines))
        for file, line, *test in json.loads(self._reached_path.read_text()):
            self._reached[file, line].append(tuple(test))

    def _tests_of(self, mutant: Mutant, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Returns those that reach a mutant, spared ones last; none if the judge has no use."""
        tests = [items[number] for *_, number in self._reaching(mutant)]
        spared = [item for item in tests if function_of(item.nodeid) in self._spared]
        if self._spared and not spared:
            return []
        return [item for item in tests if item not in spared] + spared

    def _killers(self, mutant: Mutant, items: Sequence[pytest.Item]) -> Mapping[str, Any]:
        tests = self._tests_of(mutant, items)

        def run(say: Callable[[Any], None]) -> None:
            killers: set[str] = set()
            with Applied(mutant):
                for item in tests:
                    if function_of(item.nodeid) in killers:
                        continue
                    say(["begins", item.nodeid])
                    if failure(item, 30) is not None:
                        say(["finds", item.nodeid])
                        killers.add(function_of(item.nodeid))
                        if self._spared or len(killers) >= ENOUGH:
                            break
            say(["ends", ""])

        lines = in_child(run, self._seconds * (10 if self._spared else 1))
        found = {function_of(name) for word, name in lines if word == "finds"}
        has_ended = ["ends", ""] in lines
        return {"mutant": mutant.name, "found": sorted(found), "ended": has_ended}


def in_child(run: Callable[[Callable[[Any], None]], None], seconds: float) -> list[Any]:
    """Returns what work in a forked process said until it ended, or its time was over."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        if not (child := os.fork()):
            try:
                run(lambda line: print(json.dumps(line), file=file, flush=True))
            finally:
                os._exit(0)
        timer = threading.Timer(seconds, os.kill, (child, signal.SIGKILL))
        timer.start()
        os.waitpid(child, 0)
        timer.cancel()
        file.seek(0)
        return [json.loads(line) for line in file.read().splitlines() if line.endswith(("]", "}"))]


def spared_of(matrix: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns test functions all of whose finds stay without them, with the number of finds."""
    finds: dict[str, set[str]] = defaultdict(set)
    left: dict[str, set[str]] = {}
    for line in matrix:
        left[line["mutant"]] = set(line["found"])
        for name in line["found"]:
            finds[name].add(line["mutant"])
    spared: dict[str, int] = {}
    for name in sorted(finds, key=lambda name: len(finds[name])):
        if any(part in name for part in KEPT) or any(left[m] == {name} for m in finds[name]):
            continue
        spared[name] = len(finds[name])
        for mutant in finds[name]:
            left[mutant].discard(name)
    return spared


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("do", choices=("find", "spare", "judge"))
    parser.add_argument("--of", choices=sorted(TARGETS), required=True)
    parser.add_argument("--num", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20, help="of a mutant")
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if given.do == "spare":
        lines = (FOLDER / f"{given.of}.{given.seed}.jsonl").read_text().splitlines()
        spared = spared_of(map(json.loads, lines))
        (FOLDER / f"{given.of}.txt").write_text("".join(f"{name}\n" for name in sorted(spared)))
        print("".join(f"{spared[name]} {name}\n" for name in sorted(spared)))
        return
    tests = module_tests(given.of)
    runner = MatrixRunner(all_mutants(given.of, is_wide=True), set(tests), given)
    paths = dict.fromkeys(path for paths in tests.values() for path in paths)
    pytest.main(["-n", "0", "-q", "-p", "no:cacheprovider", *paths], plugins=[runner])


if __name__ == "__main__":
    main()
