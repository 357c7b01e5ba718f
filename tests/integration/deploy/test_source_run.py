"""A deployed run that trains on what another one has stored, as its manifests start it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.integration.deploy.test_one_node import JOBS
from tests.integration.inspect.test_source_runs import taking
from tests.support.deployed.by_hand import ByHand, by_hand
from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import MODULES
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import RunFailed
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.render import ManifestRenderer, compose_override
from trinity.run.deploy.submission import ExperimentSubmission

pytestmark = pytest.mark.timeout(400)
SERVICES = ("synchronizer", "buffer", "trainer")


def deployment(plan: ExperimentPlan) -> ExperimentDeployment:
    return ExperimentDeployment(plan=plan, explorers=1, plugin_dir=None)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ByHand]:
    """The services of a deployment that `experiment_plan` was rendered for."""
    plan = experiment_plan(tmp_path)
    plan.job_path.mkdir(parents=True)
    with by_hand(tmp_path, modules=MODULES) as node, ExitStack() as stack:
        lay_over(node, deployment(plan))
        for job in JOBS:
            done = node.run(job)
            assert done.returncode == 0, done.stderr
        for name in SERVICES:
            stack.enter_context(node.service(name))
        node.wait_ready("synchronizer")
        node.wait_ready("buffer")
        yield node


def lay_over(node: ByHand, of: ExperimentDeployment) -> None:
    """The variables of compose.override.yaml."""
    services = compose_override(of)["services"]
    assert isinstance(services, dict)
    for name, service in services.items():
        assert isinstance(service, dict)
        node.compose["services"].setdefault(name, {}).setdefault("environment", {})
        node.compose["services"][name]["environment"] |= service.get("environment", {})


def submit_as_rendered(node: ByHand, plan: ExperimentPlan) -> subprocess.CompletedProcess[str]:
    """Run what the container `experiment` of the rendered project runs."""
    folder = node.folder / "rendered"
    ManifestRenderer(
        deployment=deployment(plan), target="compose", overlay="one-node", output=folder
    ).write_manifests()
    override = yaml.safe_load((folder / "compose.override.yaml").read_text())
    (trinity, *words), options = (
        override["services"]["experiment"][key] for key in ("entrypoint", "command")
    )
    assert trinity == "trinity"
    own = {
        "--plan=/etc/trinity/plan.json": f"--plan={folder / 'plan.json'}",
        "--synchronizer=127.0.0.1:50051": f"--synchronizer={node.address('synchronizer')}",
        "--buffer=127.0.0.1:50052": f"--buffer={node.address('buffer')}",
    }
    command = [sys.executable, "-m", "trinity.cli.main", *words, *(own[one] for one in options)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


async def test_it_finds_the_run_in_the_deployments_database(node: ByHand, tmp_path: Path) -> None:
    taker = taking(tmp_path)
    taker.job_path.mkdir(parents=True)
    early = submit_as_rendered(node, taker)
    assert early.returncode == 1
    assert "`experience_buffer.source_run: model-free/run` was never started here" in early.stderr
    source = ExperimentSubmission(
        plan=experiment_plan(tmp_path),
        synchronizer=node.address("synchronizer"),
        buffer=node.address("buffer"),
    )
    with node.service("explorer"):
        try:
            await source.submit_and_follow()
        except RunFailed as error:
            pytest.fail(str(error))
    done = submit_as_rendered(node, taker)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "trains on 64 experiences of stage rft of run model-free/run" in done.stdout
