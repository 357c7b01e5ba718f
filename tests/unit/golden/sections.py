"""Every section of the corpus by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.golden import commands, contracts, http, mutations, yaml_files
from tests.unit.golden.corpus import recorded

RECIPES = "recipes"
"""Recorded as well, and made again only if that is asked for."""

SECTIONS: dict[str, Callable[[Path], Any]] = {
    "database": lambda _: contracts.database(),
    "examples": lambda _: contracts.examples(),
    "exit_codes": commands.exit_codes,
    "formats": contracts.formats,
    "http": lambda _: http.answers(),
    "mutations": lambda folder: mutations.changed_files(folder, recorded(RECIPES)),
    "names": lambda _: contracts.names(),
    "options": lambda _: commands.options(),
    "outputs": commands.outputs,
    "overrides": yaml_files.overridden,
    "renderings": commands.renderings,
    "telemetry": lambda _: contracts.telemetry(),
    "yaml": yaml_files.loaded,
}
