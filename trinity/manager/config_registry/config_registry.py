"""The module of Trinity-RFT that holds CONFIG_GENERATORS."""

from trinity.studio.generator.registry import CONFIG_GENERATORS as CONFIG_GENERATORS
