"""The data, the model and one undisturbed run that the others are compared with."""

from collections.abc import Callable
from pathlib import Path

import pytest

from examples.addition.prepare import prepare
from tests.e2e.launched import Launched

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_EVALUATED = 64

Launch = Callable[[str], Launched]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    root = tmp_path_factory.mktemp("e2e")
    prepare(root / "made", seed=5)
    rows = (root / "made/data/test.jsonl").read_text().splitlines(keepends=True)
    (root / "few.jsonl").write_text("".join(rows[:NUM_EVALUATED]))
    return lambda name: Launched(root, name, REPOSITORY)


@pytest.fixture(scope="session")
def undisturbed(launch: Launch) -> Launched:
    run = launch("undisturbed")
    run.start()
    assert run.wait() == 0, run.text
    return run
