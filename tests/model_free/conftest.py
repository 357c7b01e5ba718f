"""What the tests here share, and the weights that runs are compared with."""

from tests.faults.shared_arena import arena as arena
from tests.model_free.alone import calm_weights as calm_weights
from tests.model_free.shared_stack import shared_stack as shared_stack
