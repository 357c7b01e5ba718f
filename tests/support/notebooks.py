"""Runs the cells of a notebook one after the other, where an event loop runs as in Jupyter."""

import asyncio
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
PARAMETERS = "parameters"


def run_notebook(name: str, **parameters: object) -> dict[str, Any]:
    """Returns the names that a notebook has defined; parameters replace those of its own cell."""
    asyncio.get_running_loop()
    names: dict[str, Any] = {}
    for cell in json.loads((FOLDER / name).read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
            if PARAMETERS in cell["metadata"].get("tags", ()):
                assert parameters.keys() <= names.keys(), "it has no such parameter"
                names |= parameters
    return names
