"""The Python interpreter: requirements for it, and files that hide modules.

This module is imported first, so it imports only modules that the interpreter has loaded already.
"""

import os
import sys
from _frozen_importlib_external import PathFinder

from trinity.errors import UserError

TYPE_CHECKING = False  # `typing` is a file that could be hidden; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OLDEST, NEWEST = (3, 11), (3, 13)
NEWEST_FOR_MODELS = (3, 12)
SYSTEM = "linux"
OWN_PACKAGES = ("services", "trinity")
OTHERS = ("services-", "trinity-", "trinity_rft-")
"""Distributions that have these packages too."""
_OWN_FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__))


def check_interpreter(
    version: tuple[int, int] = sys.version_info[:2], system: str = sys.platform
) -> None:
    """Checks Python, the operating system and import paths.

    Raises: UserError for another Python or system, for another distribution with packages of the
    same name, and when child processes would import the packages of another checkout.
    """
    if system != SYSTEM:
        raise UserError(f"this runs on Linux, and here is {system}: use a Linux machine")
    _check_version(version, NEWEST, "this runs")
    for installed in sorted(os.listdir(_OWN_FOLDER)):
        if installed.startswith(OTHERS) and installed.endswith(".dist-info"):
            raise UserError(
                f"{installed.rpartition('.')[0]} and this project have packages of the same name "
                f"in {_OWN_FOLDER}: install each in a separate environment"
            )
    given = os.environ.get("PYTHONPATH")
    for folder in given.split(os.pathsep) if given else ():
        if hidden := _foreign_package(folder):
            raise UserError(hidden)


def check_interpreter_for_models(version: tuple[int, int] = sys.version_info[:2]) -> None:
    """Raises: UserError for a Python for which torch, vLLM and verl are not locked."""
    _check_version(version, NEWEST_FOR_MODELS, "models run")


def hiding_files(path: "Sequence[str]" = sys.path) -> "Iterator[str]":
    """Yields a sentence for each file of PYTHONPATH or of the first folder that hides a module.

    Folders of the environment are skipped: libraries put some folders in front on purpose.
    """
    installed = os.path.join(sys.prefix, "")
    for place, entry in enumerate(path):
        folder = os.path.abspath(entry or ".")
        if folder == _LIBRARY:
            return
        if folder == _OWN_FOLDER or folder.startswith(installed) or not os.path.isdir(folder):
            continue
        later = [other for other in path[place + 1 :] if os.path.abspath(other or ".") != folder]
        for name in sorted(filter(None, map(_module_name, os.scandir(folder)))):
            hidden = PathFinder.find_spec(name, later)
            if hidden is not None and hidden.origin is not None:
                yield _sentence(os.path.join(folder, name), name, hidden.origin)


def _check_version(version: tuple[int, int], newest: tuple[int, int], what: str) -> None:
    if not OLDEST <= version <= newest:
        found, first, last = map(_dotted, (version, OLDEST, newest))
        raise UserError(
            f"{what} on Python {first} to {last}, and {sys.executable} is Python {found}: "
            f"make an environment with one of those (python{_dotted(NEWEST_FOR_MODELS)} -m venv)"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _foreign_package(entry: str) -> str:
    folder = os.path.abspath(entry or ".")
    for name in OWN_PACKAGES:
        file = os.path.join(folder, name, "__init__.py")
        own = os.path.join(_OWN_FOLDER, name, "__init__.py")
        if os.path.isfile(file) and os.path.isfile(own) and not os.path.samefile(file, own):
            return _sentence(os.path.dirname(file), name, own)
    return ""


def _module_name(entry: "os.DirEntry[str]") -> str:
    """Returns the module name of a file or folder, or an empty text."""
    name, ending = os.path.splitext(entry.name)
    if ending == ".py":
        return name
    is_package = os.path.isfile(os.path.join(entry.path, "__init__.py"))
    return entry.name if is_package else ""


def _sentence(place: str, name: str, hidden: str) -> str:
    folder = os.path.dirname(place)
    return (
        f"{place} hides the module `{name}` in {hidden}: rename it, or keep {folder} out of "
        "PYTHONPATH and start elsewhere"
    )
