"""The data, the model and one undisturbed run that the others are compared with."""

from pathlib import Path
from typing import Protocol

import pytest

from examples.addition.prepare import prepare
from tests.e2e.launched import CONFIG, Launched

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_EVALUATED = 64


class Launch(Protocol):
    """Makes an experiment of this name, from a configuration's text."""

    def __call__(self, name: str, config: str = CONFIG) -> Launched: ...


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    root = tmp_path_factory.mktemp("e2e")
    prepare(root / "made", seed=5)
    rows = (root / "made/data/test.jsonl").read_text().splitlines(keepends=True)
    (root / "few.jsonl").write_text("".join(rows[:NUM_EVALUATED]))

    def make(name: str, config: str = CONFIG) -> Launched:
        return Launched(root, name, REPOSITORY, config)

    return make


@pytest.fixture(scope="session")
def undisturbed(launch: Launch) -> Launched:
    run = launch("undisturbed")
    run.start()
    assert run.wait() == 0, run.text
    return run
