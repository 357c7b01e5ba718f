"""The weights that runs are compared with."""

import pytest

from tests.integration.together.alone import weights_alone


@pytest.fixture(scope="session")
def calm_weights() -> str:
    """Of the plan as it is, whose seed is 7."""
    return weights_alone(7)
