"""Section `log`: how much the services log."""

from typing import Annotated, Literal

from trinity.config.reasons import DERIVED
from trinity.config.section import Section
from trinity.config.status import NoEffect


class LogConfig(Section):
    """Logging of the services."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level that is written."""
    group_by_node: Annotated[bool, NoEffect("each service writes one file, on its machine")] = False
    """A directory of logs for each machine."""
    save_dir: Annotated[str, DERIVED] = ""
    """Where logs are kept."""
