"""The images of the buffer and the synchronizer: small, without torch, and able to serve."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.images.environments import Environment, install
from tests.support.deployed.by_hand import by_hand

MOST_MEGABYTES = 300
SERVICES = ("synchronizer", "buffer")
JOBS = ("accounts", "migrate-synchronizer", "migrate-buffer")


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Environment]]:
    folder = tmp_path_factory.mktemp("images")
    yield {service: install(service, folder / service) for service in SERVICES}


@pytest.mark.timeout(8_000)
@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_small_and_holds_its_own_service_alone(
    environments: dict[str, Environment], service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = environments[service]
    with capsys.disabled():
        sys.stdout.write(f"\n{service}: {environment.megabytes:.0f} MB ")
    assert environment.megabytes < MOST_MEGABYTES
    assert environment.can_import(f"services.{service}.__main__")
    if service == "buffer":
        assert environment.can_import("pyarrow.parquet")
    others = {"buffer", "explorer", "synchronizer", "trainer"} - {service}
    for foreign in ("torch", "transformers", "vllm", "tests", *(f"services.{o}" for o in others)):
        assert not environment.can_import(foreign), foreign


@pytest.mark.timeout(8_000)
def test_the_images_serve(environments: dict[str, Environment], tmp_path: Path) -> None:
    """Accounts, migrations and services, each in the environment of its image."""
    pythons = {service: environment.python for service, environment in environments.items()}
    with by_hand(tmp_path, pythons) as node:
        for job in JOBS:
            done = node.run(job)
            assert done.returncode == 0, done.stderr
        with node.service("synchronizer"), node.service("buffer"):
            for service in SERVICES:
                node.wait_ready(service)
