"""No password, token or key stands in a log, a trace, a result or the list of processes."""

import asyncio
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from tests.integration.telemetry.receiver import receiver
from tests.support.model_free.experiment import Sections, experiment_plan
from tests.support.model_free.stack import model_free_services
from tests.unit.config.builders import GRPO
from trinity.cli.main import make_app
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.experiment import deep_merge
from trinity.run.launch.resume import PLAN_FILE
from trinity.run.launch.run import LocalRun
from trinity.run.local.run_file import read_running
from trinity.run.progress.reporter import make_reporter
from trinity.run.progress.summary import SUMMARY_FILE

RUN_SECONDS = 150
SAMPLE_SECONDS = 0.2
SHORTEST = 16
"""Characters of what is looked for: a shorter text could stand somewhere by chance."""


@dataclass(slots=True)
class Seen:
    """Everything that a run showed to others on the machine."""

    commands: set[str]
    environments: set[str]


def secrets_in(job_dir: Path) -> dict[str, str]:
    """Every secret value by the file that holds it."""
    infra = job_dir / "infra"
    found = {}
    for path in (*(infra / "secrets").iterdir(), *(infra / "security").rglob("*")):
        if path.is_file() and not path.name.endswith((".crt", "token-keys.pem")):
            found[str(path.relative_to(infra))] = _heart_of(path.read_text())
    return found


def _heart_of(text: str) -> str:
    """What is secret in it: of an address the password, of a PEM file a line of its key."""
    if match := re.search(r"://[^:]+:([^@]+)@", text):
        return match[1]
    if "PRIVATE KEY" in text:
        return text.splitlines()[1]
    return text.strip()


def files_to_search(job_dir: Path) -> Iterator[Path]:
    infra = job_dir / "infra"
    kept = [infra / "secrets", infra / "security", infra / "nats" / "nats.conf"]
    for path in job_dir.rglob("*"):
        if path.is_file() and not any(path == one or one in path.parents for one in kept):
            yield path


async def watch_processes(seen: Seen, root: psutil.Process) -> None:
    """What `ps` shows, again and again."""
    while True:
        for process in root.children(recursive=True):
            try:
                seen.commands.add(" ".join(process.cmdline()))
                seen.environments.add(str(process.environ()))
            except psutil.Error:
                continue
        await asyncio.sleep(SAMPLE_SECONDS)


CONFIGURED = {
    name: f"{name}-{secrets.token_hex(12)}" for name in ("workflow", "database", "judge", "engine")
}
"""Keys and passwords of the user's own, which stand in the configuration."""
IN_VARIABLES = {
    name: secrets.token_hex(20) for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD")
}
"""Keys that a user sets for a monitor before the run."""
EXPORTER_KEY = secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Watched:
    """A run's monitor with the key that stands in its configuration."""

    package: str
    arguments: Mapping[str, str]
    key: str


def monitors(root: Path) -> Mapping[str, Watched]:
    """W&B offline, and a store of MLflow's, both with a key of the right form."""
    key = secrets.token_hex(20)
    store = {"uri": f"sqlite:///{root}/mlflow.db", "username": "me", "password": key}
    return {
        "wandb": Watched("wandb", {"api_key": key}, key),
        "mlflow": Watched("mlflow", store, key),
    }


def with_keys() -> Sections:
    """Sections with every kind of place for a secret."""
    address = f"postgresql://me:{CONFIGURED['database']}@db.example/facts"
    return {
        "explorer": {
            "eval_on_startup": False,
            "max_retry_times": 2,
            "rollout_model": {"api_key": CONFIGURED["engine"]},
        },
        "buffer": {
            "total_steps": 3,
            "explorer_input": {
                "taskset": {
                    "workflow_args": {"api_key": CONFIGURED["workflow"], "database": address},
                    "reward_fn_args": {"judge_api_key": CONFIGURED["judge"]},
                },
                "default_workflow_type": "tests.support.model_free.keyed.KeyedWorkflow",
                "default_reward_fn_type": "tests.support.model_free.keyed.KeyedReward",
            },
        },
    }


def keyed_plan(root: Path, watched: Watched) -> ExperimentPlan:
    sections: Sections = {
        **with_keys(),
        "monitor": {"monitor_type": watched.package, "monitor_args": dict(watched.arguments)},
        "log": {"level": "DEBUG"},
    }
    return experiment_plan(root, **sections)


async def what_commands_show(folder: Path, job_dir: Path) -> str:
    """Of a file with such sections, and of the run as long as it goes on."""
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(deep_merge(GRPO, with_keys())))
    texts = [await said("config", command, str(file)) for command in ("show", "check", "plan")]
    assert "judge_api_key: '***'" in texts[0] and ":***@db.example" in texts[0], texts[0]
    while read_running(job_dir) is None:  # noqa: ASYNC110  # it is a file
        await asyncio.sleep(SAMPLE_SECONDS)
    for command in ("status", "why"):
        texts.append(await said(command, "--job-dir", str(job_dir)))
    return "\n".join(texts)


async def said(*words: str) -> str:
    """Everything that a command prints, and what it fails with."""
    done = await asyncio.to_thread(CliRunner().invoke, make_app(words), list(words))
    return f"{done.output}\n{done.exception}"


def leaks_of(texts: Mapping[str, bytes], values: Mapping[str, str]) -> list[str]:
    return [
        f"{name} in {place}"
        for name, secret in values.items()
        for place, text in texts.items()
        if secret.encode() in text
    ]


@pytest.mark.parametrize("monitor", ["wandb", pytest.param("mlflow", marks=pytest.mark.thorough)])
async def test_no_secret_is_in_a_log_a_trace_a_result_or_the_list_of_processes(
    monitor: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = monitors(tmp_path)[monitor]
    pytest.importorskip(watched.package)
    for name, key in {**IN_VARIABLES, "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(name, key)
    plan = keyed_plan(tmp_path, watched)
    run = LocalRun(
        plan=plan, reporter=make_reporter(plan.label), services=model_free_services(), secure=True
    )
    seen = Seen(set(), set())
    with receiver() as collector:
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"x-api-key={EXPORTER_KEY}"}
        for name, value in collector.environment(**headers).items():
            monkeypatch.setenv(name, value)
        watching = asyncio.create_task(watch_processes(seen, psutil.Process()))
        looking = asyncio.create_task(what_commands_show(tmp_path, plan.job_path))
        async with asyncio.timeout(RUN_SECONDS):
            summary = await run.run_to_end()
            commands = await looking
        watching.cancel()
    assert summary.state == "finished"
    made = secrets_in(plan.job_path)
    kinds = [name.rpartition("/")[2] for name in made]
    assert {"token", "tls.key", "ca.key", "token-signing.key", "nats-buffer-password"} <= set(kinds)
    assert min(map(len, made.values())) >= SHORTEST
    files = {path: path.read_bytes() for path in files_to_search(plan.job_path)}
    names = {path.name for path in files}
    assert {SUMMARY_FILE, PLAN_FILE, "buffer.log", "explorer.log", "nats.log"} <= names
    assert b"cannot reach postgresql://me:***@" in files[plan.job_path / "log" / "explorer.log"]
    shown = capfd.readouterr()
    assert collector.spans and collector.metrics
    texts = {str(path): text for path, text in files.items()}
    texts |= {"what was printed": (shown.out + shown.err + commands).encode()}
    texts |= {"a trace or a figure": b"\n".join(collector.requests)}
    texts |= {"ps": "\n".join(seen.commands).encode()}
    environments = {"the environment": "\n".join(seen.environments).encode()}
    assert "services.buffer" in "\n".join(seen.commands)
    assert not leaks_of(texts | environments, made)
    # The plan is in the database, which acts on it, and the collector's key came in a variable.
    database = str(plan.job_path / "infra" / "postgres")
    outside = {place: text for place, text in texts.items() if not place.startswith(database)}
    assert not leaks_of(outside | environments, CONFIGURED)
    assert not leaks_of(outside, {"the monitor's key": watched.key})
    assert not leaks_of(texts, {"the collector's key": EXPORTER_KEY, **IN_VARIABLES})
