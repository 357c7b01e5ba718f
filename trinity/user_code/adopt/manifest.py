"""`adopted.json`: the parts of a fork that a run takes, and the files that hold them."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from trinity.errors import UserError
from trinity.plugins import ADOPTED_VARIABLE

FORMAT = "trinity adopted parts 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedPart:
    """A part by its name, and the definition that it is."""

    registry: str
    """The name of Trinity-RFT's registry, such as `WORKFLOWS`."""
    name: str
    module: str
    """The name by which its file is imported here."""
    attribute: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedFile:
    """A file that is imported: the whole of it, or some of its definitions."""

    module: str
    file: str
    """From the root of the checkout."""
    sha256: str
    is_package: bool = False
    original: str = ""
    """The module's name in the fork, if it has another one here."""
    keep: tuple[str, ...] = ()
    """The names that are taken from a changed file; all of them if it is empty."""
    here: Mapping[str, str] = field(default_factory=dict)
    """Names that the file defines and that this package has: their modules."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Modules of names that it imports from changed modules, by `module.name`."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Names that it imports and that are not here, by `module.name`, with advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The contents of an `adopted.json`."""

    checkout: str
    """Its folder, from that of the file."""
    parts: tuple[AdoptedPart, ...]
    files: tuple[AdoptedFile, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file. Raises: UserError when it is none that `trinity adopt` wrote."""
        try:
            written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if written.pop("format") != FORMAT:
                raise ValueError
            parts = tuple(AdoptedPart(**part) for part in written.pop("parts"))
            files = tuple(
                AdoptedFile(**{**file, "keep": tuple(file["keep"])})
                for file in written.pop("files")
            )
            return cls(**written, parts=parts, files=files)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path} is no file of `trinity adopt`: write it with `trinity adopt PATH`"
            ) from error

    def place(self, path: Path) -> Path:
        """Returns the checkout's folder if the file lies at this path."""
        return Path(os.path.normpath(path.parent / self.checkout))

    def text(self) -> str:
        """Returns it as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class AdoptedPlace:
    """The file and the checkout on the machines of a deployment."""

    file: Path
    checkout: Path

    @classmethod
    def below(cls, root: Path, file: Path) -> Self:
        """Returns the place of a file of this machine under the folder of a deployment."""
        return cls(root / file, Adopted.read(file).place(root / file))

    @property
    def environment(self) -> dict[str, str]:
        """Variables of services: it is rendered by the operator, who so allows it."""
        return {ADOPTED_VARIABLE: str(self.file), "TRINITY_TRUST_ADOPTED": "true"}

    @property
    def folders(self) -> tuple[str, str]:
        """Folders that services see."""
        return str(self.file.parent), str(self.checkout)


def adopted_paths(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns the paths that a process needs to load adopted parts: the file and the checkout."""
    if not (given := environment.get(ADOPTED_VARIABLE)):
        return ()
    path = Path(given)
    return str(path), str(Adopted.read(path).place(path))
