"""The weights that restarted runs are compared with."""

import pytest

from tests.integration.together.alone import weights_alone


@pytest.fixture(scope="session")
def calm_weights() -> str:
    """Of the plan as it is, which nobody disturbed."""
    return weights_alone(7)
