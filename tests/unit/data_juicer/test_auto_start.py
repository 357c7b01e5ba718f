"""`service.data_juicer.auto_start` starts a server where a plan asks one, in its environment."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, config
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.deploy.submission import refuse_local_modes
from trinity.run.launch.modes import started_data_juicer
from trinity.run.local import data_juicer
from trinity.run.local.addresses import InfrastructureFiles, ServiceAddresses, free_port
from trinity.run.local.data_juicer import data_juicer_python, with_data_juicer
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.process_spec import USER_ERROR_EXIT_CODE
from trinity.run.local.services import StackContext

FILTER = {"name": "data_juicer", "args": {"operators": [{"text_length_filter": {}}]}}
OF_SAMPLES: dict[str, object] = {"experience_pipeline": {"operators": [FILTER]}}
OF_TASKS: dict[str, object] = {"task_pipeline": {"operators": [{"name": "text_length_filter"}]}}


def planned(processor: dict[str, object], **juicer: object) -> ExperimentPlan:
    service = {"data_juicer": juicer}
    return plan_experiment(config(GRPO, data_processor=processor, service=service))


@pytest.mark.parametrize("processor", [OF_SAMPLES, OF_TASKS])
def test_a_server_is_started_where_the_plan_asks_one(processor: dict[str, object]) -> None:
    assert started_data_juicer(planned(processor, auto_start=True)) == 8005
    assert started_data_juicer(planned(processor, auto_start=True, port=8123)) == 8123
    given = planned(processor, auto_start=True, server_url="http://127.0.0.1:8006", port=8123)
    assert started_data_juicer(given) is None


def test_none_is_started_that_nothing_asks() -> None:
    assert started_data_juicer(planned({}, auto_start=True)) is None


@pytest.mark.parametrize("processor", [OF_SAMPLES, OF_TASKS])
def test_without_one_both_ways_to_have_it_are_named(processor: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"server_url.*auto_start: true"):
        planned(processor)


def test_a_deployment_says_that_it_starts_none() -> None:
    with pytest.raises(UserError, match="beside the buffer"):
        refuse_local_modes(planned(OF_SAMPLES, auto_start=True))
    refuse_local_modes(planned(OF_SAMPLES, server_url="http://127.0.0.1:8006"))


def test_the_environment_is_made_once_and_a_failure_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(data_juicer.CACHE_VARIABLE, str(tmp_path / "a cache"))
    monkeypatch.setattr(data_juicer, "REQUIREMENTS", ("py-x==1", "--no-index"))
    told: list[str] = []
    with pytest.raises(UserError, match=r"No matching distribution.*x-1-python.*\.log"):
        data_juicer_python(told.append)
    monkeypatch.setattr(data_juicer, "_make", lambda folder, _: (folder / ".complete").touch())
    python = data_juicer_python(told.append)
    assert python.exists() and "a cache" in str(python)
    assert data_juicer_python(told.append) == python
    assert len(told) == 2, "what failed was tried again, what is whole was not"


def test_a_python_that_has_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data_juicer.PYTHON_VARIABLE, sys.executable)
    assert data_juicer_python(print) == Path(sys.executable)
    monkeypatch.setenv(data_juicer.PYTHON_VARIABLE, "/no/python")
    with pytest.raises(UserError, match="/no/python is no program"):
        data_juicer_python(print)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python with a package that has the names which the server imports."""
    for module in ("core/data", "ops"):
        file = tmp_path / "site" / "data_juicer" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{tmp_path}/site" exec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


async def test_the_process_serves_and_finds_only_our_package(tmp_path: Path, python: Path) -> None:
    server = started_by(tmp_path / "job", python)
    assert os.listdir(server.spec.env["PYTHONPATH"]) == ["trinity"]
    environment = {**os.environ, **server.spec.env}
    process = await asyncio.create_subprocess_exec(*server.spec.argv, env=environment)
    try:
        async with asyncio.timeout(60):
            await server.wait_ready()
    finally:
        process.kill()
        await process.wait()


def test_a_port_that_is_taken_is_said(tmp_path: Path, python: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = started_by(tmp_path / "job", python, port)
        done = subprocess.run(
            server.spec.argv,
            env={**os.environ, **server.spec.env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == USER_ERROR_EXIT_CODE
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def started_by(job: Path, python: Path, port: int = 0) -> ProcessWithProbe:
    file = job / "secrets"
    context = StackContext(
        job_dir=job,
        log_level="INFO",
        addresses=ServiceAddresses.with_free_ports(nats_url="", postgres_dsn=""),
        files=InfrastructureFiles(
            buffer_nats_url=file,
            explorer_nats_url=file,
            buffer_postgres_dsn=file,
            synchronizer_postgres_dsn=file,
        ),
    )
    [server] = with_data_juicer(lambda _: [], port or free_port(), python)(context)
    return server
