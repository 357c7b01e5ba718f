"""The symbols that the corpus drives; a renamed module or class is followed here and nowhere else.

What has a public entry is driven by that: commands by `[project.scripts]` of pyproject.toml.
"""

import contextlib
import gc
import importlib
import io
import os
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import sqlalchemy as sa
import typer.main
from pydantic import BaseModel
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

import services.buffer.settings
import services.buffer.store.media_schema
import services.buffer.store.schema
import services.buffer.store.session_schema  # these tables join those of `schema`
import services.explorer.settings
import services.synchronizer.settings
import services.synchronizer.tables
import services.trainer.settings
from services.explorer.openai_api.server import AttemptApiServer
from tests.unit.explorer.builders import ArithmeticEngine, CharacterTokenizer
from tests.unit.explorer.offering import ROLLOUT
from tests.unit.monitors.builders import points_of
from tests.unit.progress.builders import whole_run
from tests.unit.source_names import ROOT
from tests.unit.test_codec import REF, an_experience
from trinity import plugins
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.sampling import SAMPLE_STRATEGIES
from trinity.algorithm.signature import read_signature
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.cli.main import GROUPS, make_app
from trinity.config.check import check_file
from trinity.config.docs.catalog import all_keys
from trinity.config.docs.resolved import resolve_config
from trinity.data import codec
from trinity.operators import OPERATORS
from trinity.operators.tasks import TASK_OPERATORS
from trinity.rft import import_hook
from trinity.run.progress.summary import RunSummary
from trinity.runtime import subjects
from trinity.runtime.settings import ServiceSettings
from trinity.runtime.telemetry import metrics, names
from trinity.runtime.telemetry.metrics import Counter, Gauge, Histogram, ObservableGauge
from trinity.studio.generator.fields import field_specs
from trinity.types import JsonValue, SamplingParams
from trinity.weights import manifest
from trinity.workflows.generation import ModelLimits
from trinity.workflows.model import ModelWrapper

OWN_VARIABLES = ("TRINITY_", "OTEL_", "HF_", "GOLDEN_", "RANK", "WORLD_SIZE", "KUBECONFIG")


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has run in this process."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def surroundings(directory: Path, variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """The working directory, and an environment without what would change a result."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(OWN_VARIABLES)}
    before, thresholds = os.getcwd(), gc.get_threshold()
    os.chdir(directory)
    gc.set_threshold(100_000)  # as commands have it
    try:
        with mock.patch.dict(
            os.environ,
            kept | {"COLUMNS": "100", "HOME": "/home/golden"} | dict(variables or {}),
            clear=True,
        ):
            yield
    finally:
        os.chdir(before)
        gc.set_threshold(*thresholds)


def _project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


VERSION: str = _project()["version"]


def trinity(*words: str) -> Done:
    """`trinity ...` as the installed script runs it."""
    module, _, function = _project()["scripts"]["trinity"].partition(":")
    main = getattr(importlib.import_module(module), function)
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["trinity", *words]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(code, out.getvalue(), err.getvalue())


def command_tree() -> Iterator[tuple[str, Any]]:
    """Every command by its words, with its options; only one is imported at a time."""
    top = _commands([])
    for name in top:
        if name not in GROUPS:
            yield name, _commands([name])[name]
            continue
        for inner in _inner(_commands([name])[name]):
            yield f"{name} {inner}", _inner(_commands([name, inner])[name])[inner]


def _commands(words: list[str]) -> Mapping[str, Any]:
    return _inner(typer.main.get_command(make_app(words)))


def _inner(group: object) -> Mapping[str, Any]:
    commands: Mapping[str, Any] = vars(group)["commands"]
    return commands


@dataclass(frozen=True, slots=True)
class Checked:
    """What is said of a YAML file, and what it comes to."""

    mistakes: tuple[str, ...]
    notices: tuple[tuple[str, str, int], ...]
    """Kind, key and line."""
    advice: tuple[str, ...]
    plan: JsonValue
    resolved: JsonValue


def checked(file: Path) -> Checked:
    """As `trinity config check` finds it."""
    report = check_file(file)
    resolved = None
    if report.plan and report.reading:
        resolved = resolve_config(report.plan, report.reading.source).tree
    return Checked(
        mistakes=report.errors,
        notices=tuple((notice.status.name, notice.key, notice.line) for notice in report.notices),
        advice=report.advice,
        plan=report.plan.model_dump(mode="json") if report.plan else None,
        resolved=resolved,
    )


def config_keys() -> Iterator[tuple[str, str]]:
    """Every key of a configuration, with whether it acts."""
    yield from ((key.path, key.status.name) for key in all_keys())


@contextlib.asynccontextmanager
async def explorer_api() -> AsyncIterator[tuple[str, str]]:
    """The explorer's HTTP API before an engine of arithmetic: address and key."""
    api = AttemptApiServer(model_path="/models/m", rollout=ROLLOUT, tokenizer=CharacterTokenizer())
    await api.start_api()
    model = ModelWrapper(
        generator=ArithmeticEngine(),
        tokenizer=CharacterTokenizer(),
        limits=ModelLimits(max_model_len=200, max_prompt_tokens=120),
        sampling=SamplingParams(max_tokens=8),
        weights=(4, 1),
        seed_of_call=lambda call: 100 + call,
        keeps_history=True,
    )
    access = api.register_attempt(model)
    try:
        yield access.address, access.key
    finally:
        await api.stop_api()


METADATA = {
    "buffer": services.buffer.store.schema.metadata,
    "synchronizer": services.synchronizer.tables.metadata,
}


def statements(table: sa.Table) -> Iterator[str]:
    """Returns the statements that create the table and its indexes on PostgreSQL."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    yield str(CreateTable(table).compile(dialect=dialect))
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        yield str(CreateIndex(index).compile(dialect=dialect))


FUNCTIONS: Mapping[str, plugins.Registry[Any]] = {
    "advantages": ADVANTAGES,
    "entropy losses": ENTROPY_LOSSES,
    "operators": OPERATORS,
    "policy losses": POLICY_LOSSES,
    "priorities": PRIORITIES,
    "sample strategies": SAMPLE_STRATEGIES,
    "task operators": TASK_OPERATORS,
    "token advantages": TOKEN_ADVANTAGES,
    "token choices": TOKEN_SELECTIONS,
}
CLASSES: Mapping[str, plugins.Registry[Any]] = {
    "rewards": plugins.REWARDS,
    "workflows": plugins.WORKFLOWS,
}
ABSENT_WORKFLOWS = sorted(plugins.WORKFLOWS.absent)
RFT_NAMES = sorted(import_hook.RENAMED)
RFT_NAMES_WITH_ADVICE = sorted(import_hook.REPLACEMENT_ADVICE)


def arguments_of(path: str) -> dict[str, JsonValue]:
    """Keyword arguments of a registered function: annotation, and default unless required."""
    signature = read_signature(path)
    return {
        name: [argument.annotation, "required" if argument.is_required else argument.default]
        for name, argument in signature.arguments.items()
    }


def algorithm_types() -> Iterator[tuple[str, Any]]:
    """Every algorithm as a dataclass of its choices."""
    yield from ((name, ALGORITHM_TYPES.get(name)) for name in ALGORITHM_TYPES.builtins)


def instrument_values() -> Iterator[Any]:
    """Everything that is measured."""
    kinds = (Counter, Gauge, Histogram, ObservableGauge)
    yield from (value for value in vars(metrics).values() if isinstance(value, kinds))


def telemetry_names() -> Iterator[str]:
    """Names of spans and attributes."""
    yield from (v for k, v in vars(names).items() if k.isupper() and isinstance(v, str))


def monitor_points() -> Iterator[JsonValue]:
    """Figures that a whole run's events give a monitor, by series and step."""
    for point in points_of(whole_run(), is_detailed=True):
        series = [point.series.stage, point.series.role]
        yield [*series, point.step, dict(sorted(point.figures.items()))]


SUBJECTS = (
    subjects.RUNS_PREFIX,
    subjects.RUNS_STREAM,
    subjects.RUNS_CONSUMER,
    subjects.runs_subject("tenant", "experiment", "stage"),
)
FILES: Mapping[str, type[BaseModel]] = {
    "manifest": manifest.Manifest,
    "summary": RunSummary,
}
SETTINGS: Mapping[str, type[ServiceSettings]] = {
    "buffer": services.buffer.settings.BufferSettings,
    "explorer": services.explorer.settings.ExplorerSettings,
    "synchronizer": services.synchronizer.settings.SynchronizerSettings,
    "trainer": services.trainer.settings.TrainerSettings,
}


def sealed_manifest(directory: Path) -> str:
    """The manifest of a directory with two files."""
    (directory / "deep").mkdir(parents=True)
    (directory / "config.json").write_text("{}\n")
    (directory / "deep" / "x.bin").write_bytes(bytes(range(256)))
    head = manifest.ManifestHead(
        kind="weights", stage="rft", step=3, incarnation=2, weights_sha256="0" * 64
    )
    manifest.seal(directory, head)
    return (directory / manifest.MANIFEST_NAME).read_text()


def encoded_experience() -> bytes:
    """A fixed sample as it crosses the wire."""
    message = codec.experience_to_proto(an_experience(), REF)
    return message.SerializeToString(deterministic=True)


ALGORITHM_NAMES = tuple(ALGORITHM_TYPES.builtins)


def form_fields() -> dict[str, str]:
    """Names of the fields of Studio's form, with the keys that they set."""
    return {name: spec.path for name, spec in field_specs().items()}


def acting_keys() -> Iterator[str]:
    """Keys outside lists and named sections that have an effect."""
    for path, status in config_keys():
        if status == "ACTS" and "[" not in path and "<" not in path:
            yield path
