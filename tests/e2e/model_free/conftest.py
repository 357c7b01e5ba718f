"""Fixtures of runs without a model: one stack, and the weights that runs are compared with."""

from tests.support.model_free.alone import calm_weights as calm_weights
from tests.support.model_free.shared_stack import shared_stack as shared_stack
