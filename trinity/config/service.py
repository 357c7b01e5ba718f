"""Section `service`: external services that the run uses."""

from typing import Annotated

from trinity.config.section import Section
from trinity.config.status import Planned


class DataJuicerServiceConfig(Section):
    """The Data-Juicer server."""

    server_url: str | None = None
    """Address of a running server, for the experience operator `data_juicer`."""
    auto_start: Annotated[
        bool, Planned("start `python -m trinity.data_juicer.server` and give its `server_url`")
    ] = False
    """Start one."""
    port: Annotated[int | None, Planned("it belongs to `auto_start`")] = None
    """Port of the one that is started."""


class ServiceConfig(Section):
    """External services."""

    data_juicer: DataJuicerServiceConfig | None = None
    """The Data-Juicer server."""
