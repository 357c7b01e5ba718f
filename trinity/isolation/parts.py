"""References to rewards and workflows, by which another process finds them.

ref = PartRef.of("my_rewards.Short", REWARDS.get("my_rewards.Short"))
PartRef(**message).resolve(REWARDS)      # in another process
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import FunctionType
from typing import Generic, Self, TypeVar, cast

import trinity
from trinity.errors import UserError
from trinity.plugins import Registry

T = TypeVar("T")
_OUR_FOLDER = Path(trinity.__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class PartRef(Generic[T]):
    """A part by the name that the configuration has for it, and by where it is defined."""

    name: str
    module: str
    qualname: str

    @classmethod
    def of(cls, name: str, part: T) -> Self:
        """Returns the reference to a part."""
        named = _named(part)
        return cls(name, named.__module__, named.__qualname__)

    def resolve(self, registry: Registry[T]) -> T:
        """Returns the part, with users' files loaded.

        Raises: UserError when this process has none.
        """
        try:
            return registry.get(self.name)
        except UserError:
            found = self._imported()
            if found is None:
                raise
            return found

    def _imported(self) -> T | None:
        """Returns a part that was registered by code alone, from its module."""
        if "<" in self.qualname or self.module == "__main__":
            return None
        try:
            module = importlib.import_module(self.module)
            return cast(T, reduce(getattr, self.qualname.split("."), module))
        except (ImportError, AttributeError):
            return None


def is_of_user(part: Callable[..., object]) -> bool:
    """Returns true for a class or function in a file that does not come with Trinity."""
    file = getattr(sys.modules.get(_named(part).__module__), "__file__", None)
    return file is None or not Path(file).resolve().is_relative_to(_OUR_FOLDER)


def _named(part: object) -> type | FunctionType:
    """Returns what the part is defined by: itself, or the class of an object."""
    return part if isinstance(part, type | FunctionType) else type(part)
