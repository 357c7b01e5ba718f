"""The data, the model and one undisturbed run that the others are compared with."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from examples.addition.prepare import prepare
from tests.e2e.launched import CONFIG, Launched
from tests.support.forking.starts import real_starts
from tests.support.shared import alone, made_once, shared_folder

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_EVALUATED = 64
UNDISTURBED = "undisturbed"


class Launch(Protocol):
    """Makes an experiment of this name, from a configuration's text."""

    def __call__(self, name: str, config: str = CONFIG) -> Launched: ...


class End(NamedTuple):
    """What a run came to."""

    rewards: list[float]
    weights: str


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    root = shared_folder(tmp_path_factory, "e2e")

    def make_data() -> str:
        prepare(root / "made", seed=5)
        rows = (root / "made/data/test.jsonl").read_text().splitlines(keepends=True)
        (root / "few.jsonl").write_text("".join(rows[:NUM_EVALUATED]))
        return ""

    made_once(root / "made.done", make_data)

    launched: list[Launched] = []

    def make(name: str, config: str = CONFIG) -> Launched:
        launched.append(Launched(root, name, REPOSITORY, config))
        return launched[-1]

    yield make
    for run in launched:
        run.end()


@pytest.fixture(scope="session")
def undisturbed_end(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> End:
    """Made once, by the first worker that needs it; its programs are started, not forked."""

    def run_it() -> str:
        run = launch(UNDISTURBED)
        with real_starts():
            run.start()
        assert run.wait() == 0, run.text
        return json.dumps(end_of(run))

    return End(*json.loads(made_once(shared_folder(tmp_path_factory, "e2e") / "end.json", run_it)))


@pytest.fixture(scope="session")
def finished_run(launch: Launch, undisturbed_end: End) -> Launched:
    """The undisturbed run, as its directory has it."""
    del undisturbed_end
    return launch(UNDISTURBED)


@pytest.fixture
def undisturbed(
    finished_run: Launched, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched]:
    """For one test at a time, whichever worker has it: some start it again."""
    with alone(shared_folder(tmp_path_factory, "e2e") / "undisturbed.lock"):
        yield finished_run


def end_of(run: Launched) -> End:
    """What it came to."""
    return End(run.rewards(), run.final_weights())
