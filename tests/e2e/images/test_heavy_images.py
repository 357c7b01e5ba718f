"""The images of all services, for processors: each made from its lock, and at work together.

Needs about 5 GB below the folder for temporary files and an index of PyTorch's CPU builds, as
`make setup` does.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.addition.prepare import prepare
from tests.e2e.images.containers import contain, give, python_of
from tests.e2e.images.environments import REPOSITORY, Environment, install
from tests.support.deployed.by_hand import ByHand, by_hand
from trinity.config.loading.load import load_config
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.render import ManifestRenderer

pytestmark = pytest.mark.timeout(8_000)
VARIANTS = {"synchronizer": "", "buffer": "", "trainer": "cpu", "explorer": "cpu"}
FOREIGN = {"trainer": ("vllm", "sqlalchemy"), "explorer": ("verl", "sqlalchemy")}
JOBS = ("accounts", "migrate-synchronizer", "migrate-buffer")
LIVE_SECONDS = 120.0
ADDITION = REPOSITORY / "examples" / "addition" / "addition.yaml"
SHORT = {
    "stages[0].buffer.train_batch_size": 16,
    "stages[0].trainer.total_steps": 2,
    "stages[1].buffer.batch_size": 4,
    "stages[1].buffer.total_steps": 2,
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One that the containers' user may enter: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="trinity-images-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def environments(folder: Path) -> dict[str, Environment]:
    return {one: install(one, folder / one, variant) for one, variant in VARIANTS.items()}


@pytest.mark.parametrize("service", FOREIGN)
def test_an_image_imports_its_own_service_whole_and_no_other(
    environments: dict[str, Environment], service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = environments[service]
    with capsys.disabled():
        sys.stdout.write(f"\n{service}: {environment.megabytes:.0f} MB ")
    assert environment.import_all(service) == ""
    others = [f"services.{other}" for other in VARIANTS if other != service]
    # Verl brings a package `tests` of its own.
    for foreign in ("tests.e2e.images", *FOREIGN[service], *others):
        assert not environment.can_import(foreign), foreign


def test_the_four_images_carry_out_an_experiment(
    environments: dict[str, Environment], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The addition example, two steps a stage, rendered for compose: vLLM answers, verl trains."""
    pythons = {service: python_of(environment) for service, environment in environments.items()}
    with by_hand(folder / "node", pythons) as node, ExitStack() as services:
        plan = short_plan(node.folder, monkeypatch)
        override = rendered(plan, node.folder / "rendered")
        node.compose["services"]["experiment"] = submission(node)
        contain(node, environments)
        for name, added in override.items():
            node.compose["services"][name]["environment"] |= added.get("environment", {})
        give(plan.job_path)
        for job in JOBS:
            done = node.run(job)
            assert done.returncode == 0, done.stderr
        logs = [services.enter_context(node.service(service)) for service in VARIANTS]
        node.wait_ready("synchronizer")
        node.wait_ready("buffer")
        for service in ("trainer", "explorer"):
            wait_live(node, service)
        done = node.run("experiment")
        assert done.returncode == 0, "\n".join([done.stderr, *(log.read_text() for log in logs)])
        published = (plan.job_path / "stages" / "rft" / "weights").glob("v*-*/manifest.json")
        assert max(version(path.parent) for path in published) >= 2


def short_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentPlan:
    prepare(folder / "work", seed=1)
    monkeypatch.setenv("TRINITY_ADDITION_WORK", str(folder / "work"))
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", str(folder / "checkpoints"))
    return plan_experiment(load_config(ADDITION, SHORT))


def rendered(plan: ExperimentPlan, output: Path) -> dict[str, dict[str, Any]]:
    """The services of compose.override.yaml."""
    of = ExperimentDeployment(plan=plan, explorers=1, plugin_dir=None)
    ManifestRenderer(
        deployment=of, target="compose", overlay="one-node", output=output
    ).write_manifests()
    override = yaml.safe_load((output / "compose.override.yaml").read_text())
    services: dict[str, dict[str, Any]] = override["services"]
    return services


def submission(node: ByHand) -> dict[str, Any]:
    """The container `experiment`, with this node's file and addresses."""
    return {
        "image": "trinity-synchronizer",
        "entrypoint": ["python", "-m", "trinity.cli.main", "deploy", "submit"],
        "command": [
            f"--plan={node.folder / 'rendered' / 'plan.json'}",
            f"--synchronizer={node.address('synchronizer')}",
            f"--buffer={node.address('buffer')}",
        ],
        "environment": {},
    }


def wait_live(node: ByHand, name: str) -> None:
    """Return when the health check of the container would be content, as it is without any work."""
    deadline = time.monotonic() + LIVE_SECONDS
    while node.probe(name).returncode != 0:
        assert time.monotonic() < deadline, (node.folder / f"{name}.log").read_text()


def version(weights: Path) -> int:
    return int(weights.name.removeprefix("v").partition("-")[0])
