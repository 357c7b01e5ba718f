"""CONFIG_GENERATORS under Trinity-RFT's import path, for plug-ins of the config generator.

from trinity.manager.config_registry import CONFIG_GENERATORS
"""

from trinity.studio.generator.registry import CONFIG_GENERATORS as CONFIG_GENERATORS
