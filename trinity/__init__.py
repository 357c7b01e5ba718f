"""Reinforcement fine-tuning of language models: what users import and extend."""

import sys

TYPE_CHECKING = (
    False  # a process checks first which files hide modules: it imports no more than sys
)
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__version__ = "0.1.0"

_NAMES_OF_TRINITY_RFT = (
    *("trinity.common", "trinity.utils", "trinity.buffer", "trinity.manager", "trinity.service"),
    *("trinity.explorer", "trinity.trainer", "trinity.plugins.", "trinity.algorithm."),
)


class _FirstImport:
    """Loads the import hook for Trinity-RFT's names when the first of them is imported."""

    @staticmethod
    def find_spec(name: str, *_: object) -> "ModuleSpec | None":
        if not name.startswith(_NAMES_OF_TRINITY_RFT):
            return None
        from trinity.rft.import_hook import FINDER

        return FINDER.find_spec(name)


sys.meta_path.insert(0, _FirstImport)
