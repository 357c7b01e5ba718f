"""Section `log`: how much the services say."""

from typing import Literal

from trinity.config.section import Section


class LogConfig(Section):
    """How much the services say."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level that is written."""
