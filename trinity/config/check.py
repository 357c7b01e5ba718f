"""Checks a configuration file without models, data or GPUs, and plans it."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from trinity.config.checks.advice import advise
from trinity.config.loading.keys import documented_key, parse_key
from trinity.config.loading.load import ParsedConfig, read_config
from trinity.config.loading.migrate import ConfigNotice
from trinity.config.loading.source import ConfigSource, add_locations
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

_KEY = re.compile(r"`([a-z_]+(?:\.\w+(?:\[\d+\])?)+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Result of checking a configuration file."""

    reading: ParsedConfig | None
    """None if the file is not a configuration at all."""
    plan: ExperimentPlan | None
    """The plan made from it; None if there are errors."""
    errors: tuple[str, ...]
    advice: tuple[str, ...] = ()
    """Settings that are allowed but rarely intended."""

    @property
    def notices(self) -> tuple[ConfigNotice, ...]:
        """Keys that do not act as they are written."""
        return self.reading.notices if self.reading else ()


def check_file(path: Path, overrides: Mapping[str, JsonValue] | None = None) -> CheckReport:
    """Reads a file and plans the experiment as far as the file is correct."""
    try:
        reading = read_config(path, overrides)
    except UserError as error:
        return CheckReport(reading=None, plan=None, errors=tuple(str(error).splitlines()))
    plan, wrong = _planned(reading)
    said = advise(plan) if plan else ()
    return CheckReport(reading=reading, plan=plan, errors=(*reading.errors, *wrong), advice=said)


def plan_config(config: Config, source: ConfigSource) -> ExperimentPlan:
    """The plan of a configuration.

    Raises: UserError whose lines say where in the file the errors are.
    """
    try:
        return plan_experiment(config)
    except UserError as error:
        names = [stage.stage_name for stage in config.stages]
        raise UserError(add_locations(str(error), source, names)) from error


def raise_errors(reading: ParsedConfig) -> None:
    """Raises UserError with everything `check_file` reports, if the file has errors."""
    if reading.errors:
        raise UserError("\n".join((*reading.errors, *_planned(reading)[1])))


def _planned(reading: ParsedConfig) -> tuple[ExperimentPlan | None, tuple[str, ...]]:
    if reading.config is None:
        return None, ()
    try:
        plan = plan_config(reading.config, reading.source)
    except UserError as error:
        return None, tuple(_without_consequences(str(error), reading))
    return (plan, ()) if not reading.errors else (None, ())


def _without_consequences(errors: str, reading: ParsedConfig) -> list[str]:
    """Drops errors that only follow from keys left out as wrong or as planned."""
    if any(documented_key(parse_key(notice.key)) == "mode" for notice in reading.planned):
        return []
    sources = [*reading.errors, *(notice.subject for notice in reading.planned)]
    left_out = {key for text in sources for key in _keys(text)}
    return [line for line in errors.splitlines() if not _mentions(line, left_out)]


def _mentions(error: str, left_out: Set[str]) -> bool:
    """True if an error names one of the keys, or a prefix of one such as its section."""
    named = _keys(error)
    return any(key.startswith(name) for key in left_out for name in named)


def _keys(text: str) -> set[str]:
    return {documented_key(parse_key(key)) for key in _KEY.findall(text)}
