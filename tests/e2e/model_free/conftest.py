"""The weights that runs here are compared with, and the stack that most of them share."""

from tests.support.model_free.alone import calm_weights as calm_weights
from tests.support.model_free.shared_stack import shared_stack as shared_stack
