"""Tables, names, files and bytes that others read."""

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

from tests.unit.golden import adapters
from tests.unit.golden.adapters import surroundings
from tests.unit.golden.commands import without_texts
from tests.unit.golden.outcomes import outcome, whole
from tests.unit.source_names import ROOT, files

_VARIABLE = re.compile(r"\bTRINITY_[A-Z][A-Z_]*[A-Z]\b")


def database() -> dict[str, Any]:
    """Tables and indexes of both schemas, as they are made."""
    return {
        name: [[line.strip() for line in text.strip().splitlines()] for text in made]
        for name, metadata in adapters.METADATA.items()
        for made in [list(adapters.statements(metadata))]
    }


def names() -> dict[str, Any]:
    """Names that users write: parts with their arguments, keys, and those of Trinity-RFT."""
    functions = {
        kind: {name: adapters.arguments_of(path) for name, path in registry.builtins.items()}
        for kind, registry in adapters.FUNCTIONS.items()
    }
    classes = {kind: sorted(registry.builtins) for kind, registry in adapters.CLASSES.items()}
    return {
        **functions,
        **classes,
        "algorithms": {name: _choices(kind) for name, kind in adapters.algorithm_types()},
        "workflows that are absent": adapters.ABSENT_WORKFLOWS,
        "names of Trinity-RFT": adapters.RFT_NAMES,
        "names of Trinity-RFT with advice": adapters.RFT_NAMES_WITH_ADVICE,
        "keys": dict(sorted(adapters.config_keys())),
    }


def _choices(kind: Any) -> dict[str, Any]:
    texts = ("summary", "when_to_use", "paper", "safe_lag")
    return {
        field.name: _plain(getattr(kind, field.name))
        for field in dataclasses.fields(kind)
        if field.name not in texts
    }


def _plain(value: Any) -> Any:
    return {str(k): dict(v) for k, v in value.items()} if hasattr(value, "items") else value


def telemetry() -> dict[str, Any]:
    """Metrics, spans, attributes, subjects, and the columns of monitors."""
    return {
        "metrics": {
            metric.name: [metric.kind, metric.unit, list(getattr(metric, "bounds", None) or ())]
            for metric in adapters.instrument_values()
        },
        "spans and attributes": sorted(adapters.telemetry_names()),
        "subjects": list(adapters.SUBJECTS),
        "monitors": list(adapters.monitor_points()),
    }


def formats(folder: Path) -> dict[str, Any]:
    """Files of a run, settings of services, and bytes on the wire."""
    settings = {
        name: without_texts(kind.model_json_schema()) for name, kind in adapters.SETTINGS.items()
    }
    prefixes = {k: kind.model_config["env_prefix"] for k, kind in adapters.SETTINGS.items()}
    encoded = adapters.encoded_experience()
    return {
        "files": {k: without_texts(v.model_json_schema()) for k, v in adapters.FILES.items()},
        "a manifest": adapters.sealed_manifest(folder / "weights").splitlines(),
        "settings": settings,
        "variables of settings": prefixes,
        "variables": sorted(_variables()),
        "an experience": [len(encoded), hashlib.sha256(encoded).hexdigest()],
    }


def _variables() -> set[str]:
    """Names of environment variables that our code speaks of."""
    ours = [file for file in files() if file.startswith(("trinity/", "services/", "deploy/"))]
    texts = [(ROOT / file).read_text(encoding="utf-8", errors="replace") for file in ours]
    return {name for text in texts for name in _VARIABLE.findall(text)}


def examples() -> dict[str, Any]:
    """Every example: its plan and its resolved form, whole."""
    found = sorted(
        name for name in files() if name.startswith("examples/") and name[-5:] == ".yaml"
    )
    with surroundings(ROOT):
        return {name: whole(outcome(ROOT / name)) for name in found}
