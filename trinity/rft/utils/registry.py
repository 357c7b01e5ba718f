"""Registries of Trinity-RFT's import path, for files that keep one of their own."""

from collections.abc import Mapping

from trinity import plugins
from trinity.plugins import get_logger


class Registry(plugins.Registry[object]):
    """Parts by name; those in `default_mapping` are dotted paths, imported on first use."""

    def __init__(self, name: str, default_mapping: Mapping[str, str] | None = None) -> None:
        super().__init__(name, default_mapping)
        self.name = name
        self.logger = get_logger("registry")
