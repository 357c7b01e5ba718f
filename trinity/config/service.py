"""Section `service`: services of others that the run uses."""

from typing import Annotated

from trinity.config.section import Section
from trinity.config.status import Planned


class DataJuicerServiceConfig(Section):
    """The Data-Juicer server."""

    server_url: str | None = None
    """Address of one that runs."""
    auto_start: bool = False
    """Start one."""
    port: int | None = None
    """Port of the one that is started."""


class ServiceConfig(Section):
    """Services of others."""

    data_juicer: Annotated[
        DataJuicerServiceConfig | None, Planned("no operator asks Data-Juicer for anything")
    ] = None
    """The Data-Juicer server."""
