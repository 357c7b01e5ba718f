"""Fixtures of the tests that kill: the arena, and the weights that runs are compared with."""

from tests.chaos.shared_arena import arena as arena
from tests.support.model_free.alone import calm_weights as calm_weights
