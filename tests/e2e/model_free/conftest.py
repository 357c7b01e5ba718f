"""The weights that runs here are compared with."""

from tests.support.model_free.alone import calm_weights as calm_weights
