"""What the Dockerfiles set."""

import pytest

from tests.e2e.images.environments import variables


@pytest.mark.parametrize("service", ["explorer", "trainer"])
def test_an_image_with_torch_names_its_user(service: str) -> None:
    """Torch 2.11, the build for GPUs, is not imported whole by a number without a name."""
    assert variables(service)["USER"]
