"""Tables, names, files and bytes that others read."""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.unit.golden import adapters
from tests.unit.golden.adapters import surroundings
from tests.unit.golden.commands import without_texts
from tests.unit.golden.outcomes import outcome
from tests.unit.source_names import ROOT, files

_VARIABLE = re.compile(r"\bTRINITY_[A-Z][A-Z_]*[A-Z]\b")


def database() -> dict[str, Any]:
    """Every table of both schemas with its indexes, as they are made."""
    return {
        f"{schema}.{table.name}": [
            [line.strip() for line in statement.strip().splitlines()]
            for statement in adapters.statements(table)
        ]
        for schema, metadata in adapters.METADATA.items()
        for table in metadata.sorted_tables
    }


def names() -> dict[str, Any]:
    """Names that users write: parts with their arguments, keys, and those of Trinity-RFT."""
    functions = {
        f"{kind}: {name}": adapters.arguments_of(path)
        for kind, registry in adapters.FUNCTIONS.items()
        for name, path in registry.builtins.items()
    }
    others = {
        **{kind: registry.builtins for kind, registry in adapters.CLASSES.items()},
        "workflows that are absent": adapters.ABSENT_WORKFLOWS,
        "names of Trinity-RFT": adapters.RFT_NAMES,
        "names of Trinity-RFT with advice": adapters.RFT_NAMES_WITH_ADVICE,
    }
    algorithms = {
        f"algorithms: {name}": _choices(kind) for name, kind in adapters.algorithm_types()
    }
    keys = _by_section(dict(adapters.config_keys()), lambda key: key)
    return {
        **functions,
        **{f"{kind}: {name}": "there" for kind, known in others.items() for name in known},
        **algorithms,
        **{f"keys: {section}": held for section, held in keys.items()},
    }


def form_fields() -> dict[str, Any]:
    """Studio's fields with their keys: plug-ins and stored forms use these names."""
    return _by_section(adapters.form_fields(), lambda name: adapters.form_fields()[name])


def _by_section(
    values: Mapping[str, str], key_of: Callable[[str], str]
) -> dict[str, dict[str, str]]:
    """The values by the first part of their key."""
    sections: dict[str, dict[str, str]] = {}
    for name, value in values.items():
        section = re.split(r"[.\[]", key_of(name))[0]
        sections.setdefault(section, {})[name] = value
    return sections


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
    metrics = {
        f"metric {metric.name}": [
            metric.kind,
            metric.unit,
            list(getattr(metric, "bounds", None) or ()),
        ]
        for metric in adapters.instrument_values()
    }
    names = {f"span or attribute {name}": "there" for name in adapters.telemetry_names()}
    others = {"subjects": list(adapters.SUBJECTS), "monitors": list(adapters.monitor_points())}
    return {**metrics, **names, **others}


def formats(folder: Path) -> dict[str, Any]:
    """Files of a run, settings of services, and bytes on the wire."""
    encoded = adapters.encoded_experience()
    return {
        **{
            f"file {name}": without_texts(kind.model_json_schema())
            for name, kind in adapters.FILES.items()
        },
        **{
            f"settings of {name}": [
                kind.model_config["env_prefix"],
                without_texts(kind.model_json_schema()),
            ]
            for name, kind in adapters.SETTINGS.items()
        },
        **{f"variable {name}": "there" for name in _variables()},
        "a manifest": adapters.sealed_manifest(folder / "weights").splitlines(),
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
        return {name: outcome(ROOT / name) for name in found}
