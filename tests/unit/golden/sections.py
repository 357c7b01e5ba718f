"""Every section of the corpus by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.golden import commands, contracts, http, mutations, yaml_files

SECTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "database": lambda _: contracts.database(),
    "examples": lambda _: contracts.examples(),
    "exit_codes": commands.exit_codes,
    "fields": lambda _: contracts.form_fields(),
    "formats": contracts.formats,
    "http": lambda _: http.answers(),
    "mutations": mutations.changed_files,
    "names": lambda _: contracts.names(),
    "options": lambda _: commands.options(),
    "outputs": commands.outputs,
    "overrides": yaml_files.overridden,
    "renderings": commands.renderings,
    "telemetry": lambda _: contracts.telemetry(),
    "yaml": yaml_files.loaded,
}
