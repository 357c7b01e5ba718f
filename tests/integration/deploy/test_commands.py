"""`trinity deploy` as a person meets it: what it prints, and its mistakes in one sentence."""

import subprocess
from pathlib import Path

import pytest

from tests.support.forking.starts import run_module

REPOSITORY = Path(__file__).parents[3]


def trinity(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_module("trinity.cli.main", "deploy", *arguments, cwd=REPOSITORY)


def test_render_says_which_command_takes_it(tmp_path: Path) -> None:
    config = "examples/gsm8k/gsm8k.yaml"
    done = trinity("render", "-c", config, "--target", "k8s", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert f"kubectl apply -k {tmp_path / 'out'}\n" in done.stdout
    assert "trinity deploy secrets secrets --postgres postgres:5432" in done.stdout


def test_keys_of_the_command_line_go_into_the_plan(tmp_path: Path) -> None:
    config = "examples/gsm8k/gsm8k.yaml"
    done = trinity("render", "-c", config, "-o", str(tmp_path), "buffer.batch_size=48")
    assert done.returncode == 0, done.stderr
    assert '"batch_size": 48' in (tmp_path / "plan.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("render", "-c", "nowhere.yaml"), "nowhere.yaml"),
        (
            ("render", "-c", "examples/custom_reward/custom_reward.yaml", "-o", "build/none"),
            "is not in the images",
        ),
        (("secrets", "build/none", "--nats", "nowhere"), "`--nats nowhere` is not host:port"),
        (
            ("submit", "--plan", "README.md", "--synchronizer", "a:1", "--buffer", "b:1"),
            "README.md is no plan of this version",
        ),
        (
            ("cancel", "--plan", "README.md", "--synchronizer", "a:1"),
            "README.md is no plan of this version",
        ),
    ],
)
def test_mistakes_get_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    done = trinity(*arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (REPOSITORY / "build" / "none").exists()
