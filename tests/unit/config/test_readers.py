"""What acts is read in real runs, and what is declared not to act is read by nobody.

`trinity/config/docs/readers.json` is what runs have recorded, see tests/support/config_reads; how
a run is recorded is tried in tests/e2e/test_algorithms.py.
"""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from tests.support.config_reads.recorded import recorded
from trinity.config import schema
from trinity.config.docs.catalog import ConfigKey, all_keys
from trinity.config.docs.explain import readers_of
from trinity.config.plan import parts, stage_plan
from trinity.config.schema.base import Args, KeyStatus, literals

ROOT = Path(__file__).parents[3]
ADDITION = "examples/addition/addition.yaml"
HANDED_ON_WHOLE = ("RolloutCorrectionConfig", "StageConfig")
"""Sections that are laid over others key by key, which reads none of them by name."""

KEYS = list(
    {(key.section, key.name): key for key in reversed(list(all_keys())) if key.field}.values()
)
ACTING = [key for key in KEYS if key.status is KeyStatus.ACTS and not key.is_section]
OTHERS = [key for key in KEYS if key.status is not KeyStatus.ACTS]


def has_one_value(key: ConfigKey) -> bool:
    """What can only be one thing need not be asked for."""
    assert key.field
    return len(set(literals(key.field.annotation))) == 1


def is_taken_apart(key: ConfigKey) -> bool:
    """verl's keys are moved to where they are called here, before there is a section to read."""
    assert key.field
    if key.name == "trainer_config_path":
        return True  # tests/unit/config/test_verls_files.py
    return key.name == "trainer_config" and key.field.annotation == Args


def has_to_be_read(key: ConfigKey) -> bool:
    return not (
        key.section.__name__ in HANDED_ON_WHOLE or has_one_value(key) or is_taken_apart(key)
    )


def test_what_acts_is_read() -> None:
    unread = [key.path for key in ACTING if has_to_be_read(key) and not readers_of(key)]
    assert unread == [], "they act by declaration, and no run has read them"


def acts_elsewhere(key: ConfigKey) -> bool:
    """Of a section that is planned as a whole."""
    return any(one.name == key.name and one.section in key.section.__mro__ for one in ACTING)


def test_what_does_not_act_is_read_by_nobody() -> None:
    readers = {key.path: readers_of(key) for key in OTHERS if not acts_elsewhere(key)}
    assert {path: by for path, by in readers.items() if by} == {}


def test_a_service_that_is_said_to_read_a_key_names_it() -> None:
    said = [(key, reader) for key in ACTING for reader in readers_of(key)]
    assert [(key.path, reader) for key, reader in said if not names_it(reader, key.name)] == []


def names_it(reader: str, key: str) -> bool:
    where = {"planning": "trinity/config", "launcher": "trinity"}.get(reader)
    texts = (_sources(where or f"services/{reader}"), _sources("trinity"))
    named = re.compile(rf"\.{key}\b|\"{key}\"|_args")
    return any(named.search(text) for text in texts)


def test_what_a_process_reads_is_recorded(tmp_path: Path) -> None:
    hook = ROOT / "tests/support/config_reads/hook"
    done = subprocess.run(
        [sys.executable, "-m", "trinity.cli.main", "config", "check", ADDITION],
        cwd=ROOT,
        env={
            **os.environ,
            "TRINITY_TEST_CONFIG_READS": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(hook), str(ROOT)]),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "Python tells there of a hook that could not be loaded"
    read = recorded(tmp_path)
    assert read["BufferConfig.batch_size"] == ["planning"]


@cache
def _sources(folder: str) -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))


def test_what_is_recorded_names_sections_and_keys_that_there_are() -> None:
    """A class that is renamed takes its record along, else the page forgets who reads it."""
    kept = json.loads((ROOT / "trinity/config/docs/readers.json").read_text())
    models = {model.__name__: model for model in _all_models()}
    stale = [key for key in kept if not _exists(models, *key.split("."))]
    assert stale == []


def _all_models() -> Iterator[type[BaseModel]]:
    modules = [parts, stage_plan]
    for found in pkgutil.iter_modules(schema.__path__, f"{schema.__name__}."):
        modules.append(importlib.import_module(found.name))
    for module in modules:
        for member in vars(module).values():
            if isinstance(member, type) and issubclass(member, BaseModel):
                yield member


def _exists(models: Mapping[str, type[BaseModel]], section: str, key: str) -> bool:
    model = models.get(section)
    return model is not None and (key in model.model_fields or hasattr(model, key))
