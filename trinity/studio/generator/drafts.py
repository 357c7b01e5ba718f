"""The forms that were filled on the page Configure, for a page that is loaded again.

A browser that loads the page again begins a new session, in which every field has its default.
"""

import copy
import threading
from dataclasses import dataclass, field
from typing import Any

MAX_DRAFTS = 16
"""Visitors whose drafts are kept; that of the one who wrote longest ago is forgotten first."""


@dataclass(slots=True)
class Drafts:
    """The newest document of each visitor, in memory; threads of pages share it."""

    _kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, visitor: str, tree: dict[str, Any]) -> None:
        """Keeps a document in place of the visitor's last one."""
        with self._lock:
            self._kept.pop(visitor, None)
            self._kept[visitor] = copy.deepcopy(tree)
            while len(self._kept) > MAX_DRAFTS:
                del self._kept[next(iter(self._kept))]

    def last(self, visitor: str) -> dict[str, Any] | None:
        """Returns the visitor's last document; None if nothing was written yet."""
        with self._lock:
            return copy.deepcopy(self._kept.get(visitor))
