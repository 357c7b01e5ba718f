"""One process group of one rank for all tests here: verl takes seconds to import."""

import os
import socket
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.trainer.builders import save_tiny_model

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner
    from tests.integration.trainer.oracle_bench import Bench
    from trinity.config.plan.stage_plan import StagePlan

LIBRARIES = "ignore:.*"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of verl, ray and torch are theirs; a test of ours cannot mend them."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings(LIBRARIES))


@pytest.fixture(scope="session")
def ranks() -> Iterator["Ranks"]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.distributed

        import services.trainer.rank.stage  # noqa: F401  # imports verl
        from services.trainer.collectives import join_gang
        from services.trainer.learner.learner import make_deterministic
        from services.trainer.messages import LISTENER_VARIABLE
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gang = {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(listener.getsockname()[1]),
            LISTENER_VARIABLE: str(os.dup(listener.fileno())),
        }
        os.environ.update(gang)
        make_deterministic(num_threads=1)
        joined = join_gang(timedelta(seconds=30))
    yield joined
    torch.distributed.destroy_process_group()
    for name in gang:
        del os.environ[name]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def learner_of(ranks: "Ranks", model: Path) -> Callable[["StagePlan"], "Learner"]:
    from services.trainer.learner.learner import Learner

    return lambda plan: Learner(plan=plan, model_directory=model, ranks=ranks)


@pytest.fixture(scope="session")
def bench(ranks: "Ranks", model: Path, tmp_path_factory: pytest.TempPathFactory) -> "Bench":
    """A learner beside the oracle; see test_against_oracle.py."""
    from tests.integration.trainer.oracle_bench import Bench, make_models, make_rows

    models = make_models(model, tmp_path_factory.mktemp("oracle"))
    return Bench(ranks, models, make_rows(models))
