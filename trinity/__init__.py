"""Reinforcement fine-tuning of language models: the API for users."""

import sys

# A process checks first which files hide modules, so this imports no more than `sys`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from trinity.run.handle import AsyncRun as AsyncRun
    from trinity.run.handle import Run as Run

__version__ = "0.1.0"

ROOTS_OF_TRINITY_RFT = (
    *("trinity.common", "trinity.utils", "trinity.explorer", "trinity.trainer"),
    *("trinity.manager", "trinity.buffer", "trinity.service"),
)
_IN_BOTH = ("trinity.plugins.", "trinity.algorithm.")
"""Names below these may be ours, or only Trinity-RFT's."""


class _FirstImport:
    """Loads the import hook for Trinity-RFT's names when the first of them is imported."""

    @staticmethod
    def find_spec(name: str, *_: object) -> "ModuleSpec | None":
        if not name.startswith((*ROOTS_OF_TRINITY_RFT, *_IN_BOTH)):
            return None
        from importlib import import_module

        spec: ModuleSpec | None = import_module("trinity.rft.import_hook").FINDER.find_spec(name)
        return spec


sys.meta_path.insert(0, _FirstImport)


def __getattr__(name: str) -> object:
    """Imports `Run` and `AsyncRun` when they are first used: this stays light without them."""
    if name not in ("AsyncRun", "Run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("trinity.run.handle"), name)
