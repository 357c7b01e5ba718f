"""`trinity config ...` as a user types it: exit codes, and which libraries a process takes in."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import REPOSITORY
from tests.support.forking.starts import run_module
from tests.unit.config.builders import GRPO, write_model, write_rows
from trinity.config.schema.experiment import deep_merge

GUIDE = REPOSITORY / "tests/unit/config/guide"
GOOD = "examples/addition/addition.yaml"
HEAVY = ("torch", "grpc", "numpy", "transformers", "nats", "psycopg")


def trinity(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run_module("trinity.cli.main", *arguments, cwd=REPOSITORY)


@pytest.mark.parametrize("arguments", [["--help"], ["config", "check", GOOD]])
def test_help_and_check_take_no_heavy_library_in(arguments: list[str]) -> None:
    program = (
        "import sys; from trinity.cli.main import app; app(standalone_mode=False); "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_good_files_and_planned_keys_pass_and_mistakes_do_not() -> None:
    guide, planned = str(GUIDE / "grpo.yaml"), "monitor.monitor_type=swanlab"
    assert trinity("config", "check", GOOD, guide, planned).returncode == 0
    strict = trinity("config", "check", "--strict", GOOD, guide, planned)
    assert strict.returncode == 2
    bad = trinity("config", "check", GOOD, "trainer.grad_clp=1")
    assert bad.returncode == 2
    assert "did you mean `trainer.grad_clip`?" in bad.stdout
    assert bad.stderr == ""


def test_a_run_refuses_what_is_planned_with_one_sentence() -> None:
    planned = "monitor.monitor_type=swanlab"
    done = trinity("run", "-c", str(GUIDE / "grpo.yaml"), "--dry-run", planned)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "`monitor.monitor_type: swanlab`" in done.stderr


def test_a_strict_run_refuses_what_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    rows = write_rows(tmp_path / "rows.jsonl", {"prompt": "a", "response": "b"})
    changes = {
        "checkpoint_root_dir": str(tmp_path / "runs"),
        "model": {"model_path": write_model(tmp_path / "model")},
        "buffer": {
            "explorer_input": {
                "default_reward_fn_type": "exact_match_reward",
                "taskset": {"path": rows},
            }
        },
    }
    file.write_text(yaml.safe_dump(deep_merge(GRPO, changes)))
    usual = trinity("run", "-c", str(file), "--dry-run", "explorer.runner_num=4")
    assert usual.returncode == 0, usual.stderr
    assert "explorer.runner_num" in usual.stdout
    refused = trinity("run", "-c", str(file), "--strict", "--dry-run", "explorer.runner_num=4")
    assert refused.returncode == 2
    assert "explorer.runner_num" in refused.stdout
    assert refused.stderr.startswith("error: `--strict` rejects a configuration")


def test_a_draft_is_written_once(tmp_path: Path) -> None:
    file = str(tmp_path / "new.yaml")
    options = ["config", "init", "-o", file, "--model", "a/b", "--taskset", "/data"]
    assert trinity(*options).returncode == 0
    assert trinity("config", "check", file).stdout.startswith(f"{file}: 1 advice\n")
    again = trinity(*options)
    assert again.returncode == 2
    assert "exists" in again.stderr


def test_the_file_of_a_draft_may_be_named_without_an_option(tmp_path: Path) -> None:
    file, other = str(tmp_path / "new.yaml"), str(tmp_path / "other.yaml")
    options = ["--name", "adds", "--model", "a/b", "--taskset", "/data"]
    assert trinity("config", "init", file, *options).returncode == 0
    assert trinity("config", "check", file).returncode == 0
    both = trinity("config", "init", other, "-o", file, *options)
    assert both.returncode == 2
    assert "name one file" in both.stderr


def test_explain_and_diff_have_their_exit_codes() -> None:
    assert trinity("config", "explain", "algorithm.optimizer.lr").returncode == 0
    assert trinity("config", "explain", "algorithm.optimizer.lrr").returncode == 2
    assert trinity("config", "diff", GOOD, GOOD).returncode == 0
    assert trinity("config", "diff", GOOD, "examples/gsm8k/gsm8k.yaml").returncode == 1
