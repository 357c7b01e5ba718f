"""The folders that come with the package and hold no modules of it."""

from pathlib import Path

import trinity

_PACKAGE = Path(trinity.__file__).parent


def shipped(folder: str) -> Path:
    """Returns `deploy`, `examples`, `proto` or `requirements`, in a checkout or as installed."""
    installed = _PACKAGE / "shipped" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder
