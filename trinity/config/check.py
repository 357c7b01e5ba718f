"""Checks a configuration file without models, data or GPUs, and plans it."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from trinity.config.checks.advice import advise
from trinity.config.loading.keys import documented_key, parse_key
from trinity.config.loading.load import ParsedConfig, read_config
from trinity.config.loading.migrate import ConfigNotice
from trinity.config.loading.source import ConfigSource, add_locations
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.planning import PlanErrors, plan_experiment
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

_ROWS = re.compile(
    r"stage `(?P<stage>[^`]+)`, (?P<kind>tasksets?|experience buffer|auxiliary buffer) "
    r"`(?P<name>[^`]+)`"
)
"""The beginning of errors of rows, which name no key."""
_KEY = re.compile(r"`([a-z_]+(?:\.\w+(?:\[\d+\])?)+)")
_VALUES = ("default_workflow_type", "default_reward_fn_type", "path")
"""Keys of a taskset whose values errors repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Result of checking a configuration file."""

    reading: ParsedConfig | None
    """None if the file is not a configuration at all."""
    plan: ExperimentPlan | None
    """The plan made from it; None if there are errors."""
    errors: tuple[str, ...]
    stages: tuple[StagePlan, ...] = ()
    """The stages of the plan; where there are errors, what stand-ins make of the rest."""
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
    plan, wrong, stages = _planned(reading)
    return CheckReport(
        reading=reading,
        plan=plan,
        errors=(*reading.errors, *wrong),
        stages=stages,
        advice=advise(plan) if plan else (),
    )


def plan_config(config: Config, source: ConfigSource) -> ExperimentPlan:
    """The plan of a configuration.

    Raises: PlanErrors whose lines say where in the file the errors are.
    """
    names = [stage.stage_name for stage in config.stages]
    try:
        return plan_experiment(config)
    except PlanErrors as error:
        raise PlanErrors(add_locations(str(error), source, names), error.stages) from error
    except UserError as error:
        raise PlanErrors(add_locations(str(error), source, names), ()) from error


def raise_errors(reading: ParsedConfig) -> None:
    """Raises PlanErrors with everything `check_file` reports, if the file has errors."""
    if reading.errors:
        _, wrong, stages = _planned(reading)
        raise PlanErrors("\n".join((*reading.errors, *wrong)), stages)


def _planned(
    reading: ParsedConfig,
) -> tuple[ExperimentPlan | None, tuple[str, ...], tuple[StagePlan, ...]]:
    """Returns the plan if there are no errors, the errors, and the stages as far as they go."""
    if reading.config is None:
        return None, (), ()
    try:
        plan = plan_config(reading.config, reading.source)
    except PlanErrors as error:
        return None, tuple(_without_consequences(str(error), reading)), error.stages
    return (None if reading.errors else plan), (), plan.stages


def locate_errors(
    errors: str, stages: Sequence[StagePlan], reading: ParsedConfig
) -> tuple[str, ...]:
    """Prefixes each line with `file:line: ` of the key that has the wrong value."""
    return tuple(_located(line, stages, reading) for line in errors.splitlines())


def _located(error: str, stages: Sequence[StagePlan], reading: ParsedConfig) -> str:
    assert reading.config is not None, "it has stages"
    names = [written.stage_name for written in reading.config.stages]
    found = _ROWS.match(error)
    stage = next((stage for stage in stages if found and stage.name == found["stage"]), None)
    if found is None or stage is None:
        return add_locations(error, reading.source, names)
    if found["kind"].startswith("taskset"):
        keys = list(_wrong_keys(error[found.end() :], stage, found["name"]))
    else:
        above = "buffer.trainer_input"
        place = "experience_buffer"
        if found["kind"].startswith("auxiliary"):
            place = f"auxiliary_buffers.{found['name']}"
        keys = [f"{above}.{place}.path", f"{above}.{place}"]
    prefixes = [f"stages[{index}]." for index, name in enumerate(names) if name == stage.name]
    places = (f"{prefix}{key}" for key in keys for prefix in (*prefixes, ""))
    origin = next(filter(None, map(reading.source.origin, places)), None)
    return f"{origin or reading.source.path}: {error}"


def _wrong_keys(sentence: str, stage: StagePlan, name: str) -> Iterator[str]:
    """Yields keys that may have caused the error, the likeliest first."""
    above = "buffer.explorer_input"
    own = stage.config.buffer.explorer_input
    written = dict(own.written())
    places = [place for place, taskset in written.items() if taskset.name in ("", name)]
    for place in places:
        for key in _VALUES:
            value = getattr(written[place], key) or getattr(own, key, None)
            if value and str(value) in sentence:
                yield f"{above}.{place}.{key}"
                yield f"{above}.{key}"
    yield from (f"{above}.{place}" for place in places)


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
