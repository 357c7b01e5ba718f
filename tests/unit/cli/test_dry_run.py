"""What a dry run says of a stage's rows, wherever they come from."""

import threading
import tomllib
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer

from tests.unit.config.builders import GRPO, SFT, config
from trinity.cli.config_check import check_files, check_on_machine
from trinity.cli.experiment import describe
from trinity.config.checks import packages
from trinity.config.planning import plan_experiment
from trinity.run.launch.prepare import PreparedRun

ROOT = Path(__file__).parents[3]
EXPERTS = {"storage_type": "file", "path": "/data/experts.jsonl"}


def said(
    capsys: pytest.CaptureFixture[str], base: dict[str, object], /, **changes: object
) -> list[str]:
    plan = plan_experiment(config(base, **changes))
    describe(PreparedRun(plan=plan, resumes=False, notes=(), notices=()))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("algorithm", ["mix", "mix_chord"])
def test_expert_rows_are_told_like_other_data(
    capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    lines = said(
        capsys,
        GRPO,
        algorithm={
            "algorithm_type": algorithm,
            "sample_strategy_args": {"expert_data_ratio": 0.25},
        },
        buffer={
            "train_batch_size": 64,
            "trainer_input": {"auxiliary_buffers": {"sft_dataset": EXPERTS}},
        },
    )
    assert "  expert rows    /data/experts.jsonl, 16 of the 64 rows of a step" in lines
    assert any(line.startswith("  tasks          /data/train.jsonl") for line in lines)


def test_rollouts_alone_have_no_expert_rows(capsys: pytest.CaptureFixture[str]) -> None:
    unused = {"trainer_input": {"auxiliary_buffers": {"sft_dataset": EXPERTS}}}
    assert not [line for line in said(capsys, GRPO, buffer=unused) if "expert" in line]


def test_training_data_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  data           /data/sft.jsonl" in said(capsys, SFT)


def test_engines_and_ranks_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, GRPO, explorer={"rollout_model": {"engine_num": 4}})
    assert any(line.startswith("  rollout        4 engines, vllm") for line in lines)
    assert any(line.startswith("  trainer        1 rank, ") for line in lines)
    assert any(line.endswith("every 1 step, offset 0") for line in lines)


def missing(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("not here now: ")]


def test_gpus_that_this_machine_does_not_have_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("trinity.run.launch.machine.DRIVER", tmp_path / "none")
    [line] = missing(said(capsys, GRPO, cluster={"gpu_per_node": 4}))
    assert "`cluster.gpu_per_node: 4` needs GPUs" in line
    monkeypatch.setattr("trinity.run.launch.machine.DRIVER", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    [line] = missing(said(capsys, GRPO, cluster={"gpu_per_node": 4}))
    assert "CUDA_VISIBLE_DEVICES names 1 GPUs" in line
    assert not missing(said(capsys, GRPO))


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def test_a_dead_server_of_data_juicer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        given: dict[str, object] = {
            "service": {"data_juicer": {"server_url": url}},
            "data_processor": {"task_pipeline": {"operators": [{"name": "text_length_filter"}]}},
        }
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        assert not missing(said(capsys, GRPO, **given))
        answering.join()
    [line] = missing(said(capsys, GRPO, **given))
    assert f"Data-Juicer's server at {url} does not answer" in line


@pytest.mark.parametrize("extra", ["database", "buffer", "embedded", "explorer", "trainer"])
def test_what_is_not_installed_is_one_sentence_with_what_to_install(
    extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = said(capsys, GRPO)
    assert not [line for line in before if "extra `" in line]
    only = next(
        name
        for name in packages.EXTRAS[extra]
        if sum(name in names for names in packages.EXTRAS.values()) == 1
    )
    here = packages._is_here
    monkeypatch.setattr(packages, "_is_here", lambda name: name != only and here(name))
    [line] = [line for line in said(capsys, GRPO) if "extra `" in line]
    assert f"needs {only} (extra `{extra}`)" in line
    assert f"run `trinity setup {'cpu' if extra in ('explorer', 'trainer') else extra}`" in line
    checked = check_on_machine(ROOT / "examples/gsm8k/gsm8k.yaml", {})
    assert not checked.errors
    assert [text for text in checked.advice if "extra `" in text] == [line.partition(": ")[2]]


def test_each_extra_is_known_with_the_modules_of_its_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = set(project["project"]["optional-dependencies"])
    assert set(packages.EXTRAS) == declared - {"dev", "synchronizer"}
    named = [name for names in packages.EXTRAS.values() for name in names]
    assert not [name for name in named if not packages._is_here(name)], "make setup has them"


@pytest.mark.parametrize(
    ("style", "old"),
    [("fixed", None), ("trainer_driven", 3), ("fully_async", 4)],
)
def test_the_check_and_the_dry_run_tell_the_largest_lag(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, style: str, old: int | None
) -> None:
    values = config(GRPO, synchronizer={"sync_style": style})
    file = tmp_path / "run.yaml"
    file.write_text(values.model_dump_json(exclude_unset=True))
    with suppress(typer.Exit):  # this machine has not the data
        check_files([file], [], strict=False)
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  lag")]
    if old is None:
        assert told == []
        return
    assert told == [
        f"  lag        stage `main`: rollouts are up to {old} train steps old; those that take "
        "longer than all that follow are older: see `max_staleness`"
    ]
    plan = plan_experiment(values)
    describe(PreparedRun(plan=plan, resumes=False, notes=(), notices=()))
    assert f"rollouts up to {old} steps old" in capsys.readouterr().out
