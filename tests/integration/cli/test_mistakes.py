"""A user's mistake gets one sentence and exit code 2, before any process is started."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from examples.addition.prepare import prepare
from tests.e2e.conftest import REPOSITORY
from tests.e2e.launched import CONFIG
from tests.support.forking.starts import run_module
from trinity.run.local.addresses import free_port


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mistakes")
    prepare(directory / "made", seed=5)
    rows = (directory / "made/data/test.jsonl").read_text()
    (directory / "few.jsonl").write_text(rows)
    return directory


def trinity(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **environment}
    return run_module("trinity.cli.main", *arguments, env=env, cwd=REPOSITORY)


def run_with(
    root: Path, old: str = "", new: str = "", *options: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    config = root / "mistaken.yaml"
    text = CONFIG.format(name="mistaken", root=root)
    assert old in text
    config.write_text(text.replace(old, new) if old else text)
    return trinity("run", "--config", str(config), *options, **environment)


def assert_one_sentence(done: "subprocess.CompletedProcess[str]", *parts: str) -> None:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(lines) == 1, done.stderr
    assert all(part in lines[0] for part in parts), lines[0]
    assert "Traceback" not in done.stdout


def test_a_right_configuration_dry_runs(root: Path) -> None:
    done = run_with(root, "", "", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "warmup" in done.stdout
    assert not (root / "checkpoints/e2e/mistaken").exists()


def test_a_wrong_key(root: Path) -> None:
    done = run_with(root, "batch_size: 8", "batch_sice: 8")
    assert_one_sentence(done, "batch_sice", "batch_size")


def test_a_missing_configuration_file(root: Path) -> None:
    done = trinity("run", "--config", str(root / "gone.yaml"))
    assert_one_sentence(done, "gone.yaml")


def test_a_missing_data_file(root: Path) -> None:
    done = run_with(root, "data/train.jsonl", "data/gone.jsonl")
    assert_one_sentence(done, "gone.jsonl")


def test_a_taskset_without_its_prompt_column(root: Path) -> None:
    old = "path: {root}/few.jsonl\n            format: {{prompt_key: question"
    new = "path: {root}/few.jsonl\n            format: {{prompt_key: problem"
    done = run_with(root, old.format(root=root), new.format(root=root))
    assert_one_sentence(done, "problem", "held_out", "question")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_unreadable_model(root: Path, tmp_path: Path, missing: str) -> None:
    for path in (root / "made/model").iterdir():
        if path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    done = run_with(root, f"{root}/made/model", str(tmp_path))
    assert_one_sentence(done, str(tmp_path))


def test_an_unknown_reward(root: Path) -> None:
    done = run_with(root, "tests.e2e.rewards.DigitsReward", "exact_mach_reward")
    assert_one_sentence(done, "exact_mach_reward", "exact_match_reward")


def test_a_broker_that_does_not_answer(root: Path) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    done = run_with(root, TRINITY_NATS_URL=url)
    assert_one_sentence(done, url)


def test_a_database_that_does_not_answer(root: Path) -> None:
    port = free_port()
    done = run_with(root, TRINITY_POSTGRES_DSN=f"postgresql://u:secret@127.0.0.1:{port}/db")
    assert_one_sentence(done, str(port))
    assert "secret" not in done.stderr


def test_no_run_to_show_the_status_of(root: Path) -> None:
    done = trinity("status", TRINITY_CHECKPOINT_ROOT_DIR=str(root / "nowhere"))
    assert_one_sentence(done, "nowhere")


@pytest.mark.parametrize("service", ["buffer", "explorer", "synchronizer", "trainer"])
def test_a_service_refuses_a_misspelt_variable(service: str) -> None:
    variable = f"TRINITY_{service.upper()}_LISTEM"
    env = {**os.environ, variable: "x"}
    done = run_module(f"services.{service}", env=env, cwd=REPOSITORY)
    assert done.returncode == 2
    assert variable in done.stderr


def test_a_port_in_use_is_named(postgres_dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        env = {
            **os.environ,
            "TRINITY_SYNCHRONIZER_LISTEN": address,
            "TRINITY_SYNCHRONIZER_POSTGRES_DSN": postgres_dsn,
            "TRINITY_SYNCHRONIZER_MIGRATE_ON_START": "true",
        }
        done = run_module("services.synchronizer", env=env, cwd=REPOSITORY)
    assert done.returncode == 2, done.stdout + done.stderr
    assert address in done.stderr


def test_the_version_command_names_what_can_change_a_result() -> None:
    done = trinity("version")
    assert done.returncode == 0
    assert {"trinity", "torch", "verl"} <= {line.split()[0] for line in done.stdout.splitlines()}
