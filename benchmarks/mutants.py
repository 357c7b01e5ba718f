"""Mutation score: how many seeded mutants of a set of files the tests find.

python -m benchmarks.mutants                       # 300 mutants of the formulas, seed 0
python -m benchmarks.mutants --only advantage      # those of them in modules of that name
python -m benchmarks.mutants --of training --num 60 --seed 3   # learner and backend
python -m benchmarks.mutants --of rollouts --num 60 --seed 3   # workflows, codec, rows, data

Operators, comparisons, constants, indices and calls within functions are changed one at a time, in
one process that loads torch once. A mutant is found when one of the tests that reach its function
fails within two minutes. A test that takes a minute is run again for five: only then does the
mutant loop. Values in signatures are left alone: a test compares them with the
documentation. Survivors that no test can find are listed with their reason in `EQUIVALENT`.

Each outcome is a line of benchmarks/results/mutants.jsonl, or mutants_<set>.jsonl. One that was
found is not tried again while its line of source is the same, so that a run that was broken off
goes on; `--again` tries all.
"""

import argparse
import ast
import importlib
import inspect
import json
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from _pytest.subtests import failed_subtests_key
from _pytest.warnings import catch_warnings_for_item

from benchmarks.mutants_equivalent import EQUIVALENT
from benchmarks.mutants_targets import LEFT_OUT, SKIPPED, TARGETS
from benchmarks.mutants_variants import variants, wide_variants

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
MOST_TESTS = 400
SECONDS_A_TEST = 60
SECONDS_OF_A_LOOP = 300
"""A shared machine alone makes no test last that long."""
SECONDS_A_SOUND_TEST = 600
"""Its fixtures are made meanwhile."""
SECONDS_A_MUTANT = 120
"""After which it counts as a survivor."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one place of a function."""

    module: str
    function: str
    line: str
    """The source of the line."""
    change: str
    number: int
    """Among all mutants of the module."""
    first_line: int
    """Of the function."""
    is_wide: bool = False
    """True if its number counts the changes of `wide_variants`, too."""

    @property
    def name(self) -> str:
        """A name that stays while the line does."""
        module = self.module.removeprefix("trinity.algorithm.")
        return f"{module}.{self.function}: {self.line} [{self.change}]"


class _Places(ast.NodeTransformer):
    """Visits the places of a module in order; replaces the one with the wanted number."""

    def __init__(
        self, module: str, source: str, wanted: int | None = None, *, is_wide: bool = False
    ) -> None:
        self.found: list[Mutant] = []
        self._variants = wide_variants if is_wide else variants
        self._is_wide = is_wide
        self._module, self._lines, self._wanted = module, source.splitlines(), wanted
        self._functions: list[ast.FunctionDef] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._functions.append(node)
        node.body = [self.visit(statement) for statement in node.body]
        self._functions.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # the same fields

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Constant):  # a docstring
            node.value = self.visit(node.value)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self.visit(node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit(self, node: ast.AST) -> Any:
        chosen: ast.AST | None = None
        for change, other in self._variants(node) if self._functions else ():
            if len(self.found) == self._wanted:
                chosen = other
            self.found.append(self._mutant(node, change))
        if chosen is not None:
            return ast.copy_location(chosen, node)
        return super().visit(node)

    def _mutant(self, node: ast.AST, change: str) -> Mutant:
        assert isinstance(node, ast.expr | ast.stmt)
        return Mutant(
            module=self._module,
            function=self._functions[-1].name,
            line=self._lines[node.lineno - 1].strip(),
            change=change,
            number=len(self.found),
            first_line=self._functions[0].lineno,
            is_wide=self._is_wide,
        )


def module_tests(target: str) -> dict[str, tuple[str, ...]]:
    """Returns the modules of a set that are mutated, with the tests of each."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): tests
        for pattern, tests in TARGETS[target].items()
        for path in sorted(ROOT.glob(pattern))
        if path.stem not in SKIPPED
    }


def all_mutants(target: str, *, is_wide: bool = False) -> list[Mutant]:
    """Returns every mutant of a set."""
    found: list[Mutant] = []
    for name in module_tests(target):
        path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        source = path.read_text(encoding="utf-8")
        places = _Places(name, source, is_wide=is_wide)
        places.visit(ast.parse(source))
        found += places.found
    return found


class Applied:
    """Puts the code of a mutant into the functions that exist, and takes it back.

    with Applied(mutant):
        ...
    """

    def __init__(self, mutant: Mutant) -> None:
        module = importlib.import_module(mutant.module)
        source = inspect.getsource(module)
        tree = ast.parse(source)
        _Places(mutant.module, source, mutant.number, is_wide=mutant.is_wide).visit(tree)
        compiled = compile(ast.fix_missing_locations(tree), str(module.__file__), "exec")
        mutated = {code.co_qualname: code for code in _codes_within(compiled)}
        self._pairs: list[tuple[FunctionType, CodeType]] = [
            (function, mutated[function.__code__.co_qualname])
            for function in _functions(vars(module), mutant.module)
            if function.__code__.co_qualname in mutated
        ]
        self._before: list[tuple[FunctionType, CodeType]] = [
            (function, function.__code__) for function, _ in self._pairs
        ]

    def __enter__(self) -> None:
        for function, code in self._pairs:
            function.__code__ = code

    def __exit__(self, *_: object) -> None:
        for function, code in self._before:
            function.__code__ = code


def _codes_within(code: CodeType) -> Iterator[CodeType]:
    """Yields the code of functions and classes, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_within(constant)


def _functions(names: Mapping[str, Any], module: str) -> Iterator[FunctionType]:
    """Yields the functions and methods that a module defines, below their decorators."""
    for value in names.values():
        if isinstance(value, type) and value.__module__ == module:
            for own in vars(value).values():
                inner = own.fget if isinstance(own, property) else own
                inner = inner.func if isinstance(inner, cached_property) else inner
                yield from _unwrapped(inner)
        elif getattr(value, "__module__", None) == module:
            yield from _unwrapped(value)


def _unwrapped(value: object) -> Iterator[FunctionType]:
    inner = inspect.unwrap(value) if callable(value) else getattr(value, "__func__", None)
    if isinstance(inner, FunctionType):
        yield inner


@dataclass(slots=True)
class MutationScore:
    """The outcome of a run."""

    seed: int
    num_mutants: int = 0
    num_found: int = 0
    num_equivalent: int = 0
    survivors: tuple[str, ...] = ()
    num_loops: int = 0
    """Those of the found mutants that never end."""
    num_left: int = 0
    """Mutants of the sample that were not tried."""

    @property
    def share(self) -> float:
        """Found mutants among those that are not equivalent."""
        return self.num_found / max(self.num_mutants - self.num_equivalent, 1)


class MutantOutcomes:
    """A file of tried mutants: lines are only added, and the last one of a mutant counts.

    outcomes = MutantOutcomes(path)
    outcomes.add(mutant, is_found=True)
    score = outcomes.score(sample, seed=0)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._lines = {line["mutant"]: line for line in map(json.loads, lines)}

    def is_found(self, mutant: Mutant) -> bool:
        """Returns true if a test is known that finds it."""
        return bool(self._lines.get(mutant.name, {}).get("found"))

    def add(self, mutant: Mutant, end: str | None) -> None:
        """Notes how the first test ended that found it."""
        line = {"mutant": mutant.name, "found": end is not None}
        self._lines[mutant.name] = line | ({"loops": True} if end == "loops" else {})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._lines[mutant.name]) + "\n")

    def score(self, sample: Sequence[Mutant], seed: int) -> MutationScore:
        """Returns the known outcomes of a sample."""
        tried = [mutant.name for mutant in sample if mutant.name in self._lines]
        survivors = [name for name in tried if not self._lines[name]["found"]]
        return MutationScore(
            seed=seed,
            num_mutants=len(tried),
            num_found=len(tried) - len(survivors),
            num_equivalent=sum(name in EQUIVALENT for name in survivors),
            survivors=tuple(name for name in survivors if name not in EQUIVALENT),
            num_loops=sum("loops" in self._lines[name] for name in tried),
            num_left=len(sample) - len(tried),
        )


class MutantRunner:
    """Runs the collected tests once, then those that reach a mutant for each mutant.

    Tests that reach few functions come first: they are about the mutant's own.
    """

    def __init__(
        self, mutants: Sequence[Mutant], outcomes: "MutantOutcomes", modules: Collection[str]
    ) -> None:
        self._mutants = mutants
        self._outcomes = outcomes
        self._files = {f"{ROOT.joinpath(*name.split('.'))}.py" for name in modules}
        self._reached: dict[tuple[str, int], list[tuple[int, float, int]]] = defaultdict(list)
        self._now: set[tuple[str, int]] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        started = time.monotonic()
        items = session.items
        for number, item in enumerate(items):
            end = self._run_once(number, item)
            assert end is None, f"{item.nodeid} {end} on sound code"
        print(f"\n{len(items)} tests in {time.monotonic() - started:.0f} s", flush=True)
        for mutant in self._mutants:
            self._try(mutant, items)
        return True

    def _run_once(
        self, number: int, item: pytest.Item, following: pytest.Item | None = None
    ) -> str | None:
        """Notes which functions a test reaches, and how long it takes."""
        self._now = set()
        started = time.monotonic()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            end = failure(item, SECONDS_A_SOUND_TEST, following)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        for place in self._now:
            self._reached[place].append((len(self._now), time.monotonic() - started, number))
        return end

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        """Notes a call for the test that runs now: threads outlive the test that starts them."""
        code = frame.f_code
        if event == "call" and code.co_filename in self._files:
            self._now.add((code.co_filename, code.co_firstlineno))

    def _reaching(self, mutant: Mutant) -> list[tuple[int, float, int]]:
        """Returns the tests that reach a mutant's function, those of few functions first."""
        file = f"{ROOT.joinpath(*mutant.module.split('.'))}.py"
        lines = range(mutant.first_line - 3, mutant.first_line + 1)  # decorators come before
        found = [self._reached.get((file, line), []) for line in lines]
        return sorted(test for reached in found for test in reached)[:MOST_TESTS]

    def _try(self, mutant: Mutant, items: Sequence[pytest.Item]) -> None:
        tests = self._reaching(mutant)
        with Applied(mutant):
            num_run, end = _first_failure([items[number] for *_, number in tests])
        self._outcomes.add(mutant, end)
        if end is None and mutant.name not in EQUIVALENT:
            print(f"survived {num_run} of {len(tests)} tests: {mutant.name}", flush=True)


def _first_failure(items: Sequence[pytest.Item]) -> tuple[int, str | None]:
    """Returns how many tests were run in the time of a mutant, and how the last one failed."""
    until = time.monotonic() + SECONDS_A_MUTANT
    for number, item in enumerate(items):
        if time.monotonic() > until:
            return number, None
        end = failure(item)
        if end == "loops":
            end = failure(item, SECONDS_OF_A_LOOP)
        if end is not None:
            return number + 1, end
    return len(items), None


def failure(
    item: pytest.Item, seconds: int = SECONDS_A_TEST, following: pytest.Item | None = None
) -> str | None:
    """Runs a test: None if it passes, else "fails", or "loops" after these seconds.

    Fixtures that it shares with the test that follows stay.
    """
    rang = threading.Event()

    def give_up(*_: object) -> None:
        rang.set()
        raise TimeoutError("a mutant takes too long")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        with catch_warnings_for_item(item.config, item.ihook, when="runtest", item=item):
            reports = runtestprotocol(item, log=False, nextitem=following)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    if rang.is_set():
        return "loops"
    is_failed = any(report.failed for report in reports)
    is_failed |= item.config.stash[failed_subtests_key].pop(item.id, 0) > 0
    return "fails" if is_failed else None


def main() -> None:
    """Prints the score and the survivors, and writes them down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--num", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a module's name")
    parser.add_argument("--again", action="store_true", help="try also those found before")
    parser.add_argument("--of", choices=sorted(TARGETS), default="formulas", help="set of files")
    parser.add_argument("--tests", default=LEFT_OUT, help="pytest's expression of names")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    name = "mutants" if options.of == "formulas" else f"mutants_{options.of}"
    out = options.out or RESULTS / f"{name}.json"
    everything = all_mutants(options.of)
    sample = random.Random(options.seed).sample(everything, min(options.num, len(everything)))
    outcomes = MutantOutcomes(out.with_suffix(".jsonl"))
    chosen = [
        mutant
        for mutant in sample
        if options.only in mutant.module and (options.again or not outcomes.is_found(mutant))
    ]
    if chosen:
        run_tests_on(chosen, outcomes, module_tests(options.of), options.tests)
    score = outcomes.score(sample, options.seed)
    print(
        f"{score.num_found} of {score.num_mutants} mutants found, {score.num_equivalent} are "
        f"equivalent: {score.share:.1%} of the others ({score.num_loops} of those found never "
        f"end; {score.num_left} of the sample were not "
        f"tried; {len(everything)} places)"
    )
    text = json.dumps({**asdict(score), "share": round(score.share, 4)}, indent=1)
    out.write_text(text + "\n", encoding="utf-8")


def run_tests_on(
    mutants: Sequence[Mutant],
    outcomes: MutantOutcomes,
    tests: Mapping[str, tuple[str, ...]],
    expression: str,
) -> None:
    """Tries mutants with the tests of their modules."""
    paths = list(dict.fromkeys(path for m in mutants for path in tests[m.module]))
    arguments = ["-n", "0", "-q", "-p", "no:cacheprovider", "-k", expression]
    runner = MutantRunner(mutants, outcomes, {mutant.module for mutant in mutants})
    code = pytest.main([*arguments, *paths], plugins=[runner])
    assert code == pytest.ExitCode.OK, f"the tests ended with {code}"


if __name__ == "__main__":
    main()
