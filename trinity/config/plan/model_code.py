"""Names the Python code that comes with a model."""

import json
from pathlib import Path

from trinity.config.plan.model import newest_snapshot


def model_code(model: str) -> str:
    """Names the files with code of a model that are here, and where else code would come from."""
    directory = Path(model) if Path(model).is_dir() else newest_snapshot("model", model)
    if directory is None:
        return "what the hub has for it"
    files = {path.name for path in directory.glob("*.py")}
    elsewhere = set()
    for name in ("config.json", "tokenizer_config.json"):
        for reference in _references(directory / name):
            repository, found, _ = reference.rpartition("--")
            elsewhere |= {repository} if found else set()
    return ", ".join(
        [*sorted(files), *(f"code of {name} on the hub" for name in sorted(elsewhere))]
    )


def _references(file: Path) -> list[str]:
    """Returns the classes that a configuration names, as `module.Class` or `owner/name--...`."""
    try:
        classes = json.loads(file.read_bytes()).get("auto_map", {}).values()
    except (OSError, ValueError, AttributeError):
        return []
    flat = [name for given in classes for name in (given if isinstance(given, list) else [given])]
    return [name for name in flat if isinstance(name, str)]
