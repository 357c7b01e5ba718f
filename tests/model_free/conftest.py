"""The weights that runs here are compared with."""

from tests.model_free.alone import calm_weights as calm_weights
