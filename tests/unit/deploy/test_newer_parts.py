"""What stages may name beside a model and a taskset, and what a deployment then needs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.deploy.manifests import compose_files, deployment_of, rendered
from trinity.cli.deploy import app
from trinity.config.plan.parts import AuxiliaryModel, ExternalAccess, ResolvedOperator
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.explorer import AuxiliaryModelConfig
from trinity.errors import UserError
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline, TaskOperator
from trinity.run.deploy.deployment import (
    FUNCTION_TRUST,
    TRUST_COMMENT,
    ExperimentDeployment,
)
from trinity.run.deploy.kubernetes import Overlay
from trinity.run.deploy.render import ManifestRenderer, Target, render_notes

ELSEWHERE = ExternalAccess(
    base_url_env="JUDGE_URL", api_key_env="JUDGE_KEY", model_name="some/large-one"
)


def with_stage(**changes: Any) -> ExperimentDeployment:
    """The addition example, whose last stage is changed."""
    plain = deployment_of("addition")
    *before, last = plain.plan.stages
    stages = (*before, last.model_copy(update=changes))
    plan: ExperimentPlan = plain.plan.model_copy(update={"stages": stages})
    return ExperimentDeployment(plan=plan, explorers=1, plugin_dir=None)


def auxiliary(model_path: str, external: ExternalAccess | None = None) -> Mapping[str, Any]:
    """As a change of a stage."""
    stage = deployment_of("addition").plan.stages[-1]
    judge = AuxiliaryModel(
        name="judge",
        model_path=model_path,
        external=external,
        max_model_len=64,
        max_prompt_tokens=32,
        truncates_prompts=False,
        chat_template=None,
        enable_thinking=None,
        sampling=stage.tasksets[0].sampling,
        engine=AuxiliaryModelConfig(model_path=model_path),
    )
    return {"auxiliary_models": (judge,)}


def with_pipeline(pipeline: ResolvedTaskPipeline) -> ExperimentDeployment:
    taskset = deployment_of("addition").plan.stages[-1].tasksets[0]
    return with_stage(tasksets=(taskset.model_copy(update={"task_pipeline": pipeline}),))


def read_only(deployment: ExperimentDeployment, service: str) -> set[str]:
    return {one.path for one in deployment.folders(service) if not one.is_writable}


def test_the_trainer_sees_the_adapter_and_the_checkpoint_that_it_begins_with() -> None:
    deployment = with_stage(adapter_path="/work/adapter", start_checkpoint="/work/old/step-3-1")
    assert {"/work/adapter", "/work/old/step-3-1"} <= read_only(deployment, "trainer")


def test_the_buffer_sees_all_files_of_a_task_pipeline() -> None:
    deployment = with_pipeline(ResolvedTaskPipeline(further_paths=("/work/more/hard.jsonl",)))
    assert "/work/more" in read_only(deployment, "buffer")
    roots = deployment.environment("buffer")["TRINITY_BUFFER_TASKSET_ROOTS"]
    assert "/work/more" in roots.split(":")


def test_an_auxiliary_model_may_come_from_the_hub() -> None:
    assert not deployment_of("addition").uses_hub
    assert with_stage(**auxiliary("owner/judge")).uses_hub
    assert not with_stage(**auxiliary("/models/judge")).uses_hub


def test_expert_rows_may_come_from_the_hub() -> None:
    rows = deployment_of("addition").plan.stages[-1].experience_buffer
    experts = rows.model_copy(update={"storage_type": "file", "path": "owner/rows"})
    deployment = with_stage(auxiliary_buffers=(experts,))
    assert deployment.uses_hub
    assert "owner/rows" not in deployment.data_roots
    assert "/cache" in deployment.environment("buffer")["TRINITY_BUFFER_TASKSET_ROOTS"]


def test_the_name_of_a_model_elsewhere_is_no_model_of_the_hub() -> None:
    assert not with_stage(**auxiliary("some/large-one", ELSEWHERE)).uses_hub


@pytest.mark.parametrize("change", [auxiliary("m", ELSEWHERE), {"external_model": ELSEWHERE}])
def test_the_explorer_is_given_the_address_and_key_of_a_model_elsewhere(
    tmp_path: Path, change: Mapping[str, Any]
) -> None:
    """By name: who places the processes has the values."""
    deployment = with_stage(**change)
    _, override = compose_files(rendered(deployment, "compose", tmp_path / "compose"))
    given = override["services"]["explorer"]["environment"]
    assert given["JUDGE_URL"] is None and given["JUDGE_KEY"] is None
    assert "JUDGE_KEY" not in override["services"]["trainer"]["environment"]
    folder = rendered(deployment, "k8s", tmp_path / "k8s", "cluster")
    patch = yaml.safe_load((folder / "explorer.yaml").read_text())
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    where = {"secretKeyRef": {"name": "models", "key": "JUDGE_KEY", "optional": True}}
    assert {"name": "JUDGE_KEY", "valueFrom": where} in container["env"]
    policy = yaml.safe_load((folder / "models.yaml").read_text())
    assert policy["spec"]["egress"] == [{"ports": [{"protocol": "TCP", "port": 443}]}]
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert "models.yaml" in kustomization["resources"]


def test_who_renders_is_told_what_a_model_elsewhere_needs() -> None:
    deployment = with_stage(**auxiliary("m", ELSEWHERE))
    targets: tuple[Target, ...] = ("compose", "k8s", "nomad")
    for target in targets:
        (note,) = render_notes(deployment, target, "one-node")
        assert "JUDGE_URL" in note and "JUDGE_KEY" in note


def test_who_renders_is_told_where_weights_cannot_go_from_memory() -> None:
    stage = deployment_of("addition").plan.stages[-1]
    sync = stage.config.synchronizer.model_copy(update={"sync_method": "nccl"})
    deployment = with_stage(config=stage.config.model_copy(update={"synchronizer": sync}))
    assert not [*render_notes(deployment, "compose", "one-node")]
    places: tuple[tuple[Target, Overlay], ...] = (
        ("k8s", "one-node"),
        ("k8s", "cluster"),
        ("nomad", "cluster"),
    )
    for target, overlay in places:
        (note,) = render_notes(deployment, target, overlay)
        assert "TRINITY_TRAINER_TRANSFER_HOST" in note


@pytest.mark.parametrize(
    ("what", "deployment"),
    [
        ("operator", with_stage(operators=(ResolvedOperator(name="mine.Shorten", args={}),))),
        (
            "task operator",
            with_pipeline(
                ResolvedTaskPipeline(operators=(TaskOperator(name="mine.f", args={}, is_own=True),))
            ),
        ),
    ],
)
def test_operators_that_are_in_no_image_are_refused(
    tmp_path: Path, what: str, deployment: ExperimentDeployment
) -> None:
    with pytest.raises(UserError, match=rf"the {what} `mine\..*--plugin-dir"):
        rendered(deployment, "compose", tmp_path / "out")


def test_a_bench_of_a_run_is_started_where_the_run_is(tmp_path: Path) -> None:
    config = str(Path(__file__).parents[3] / "examples/addition/addition.yaml")
    arguments = ["render", "--config", config, "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "mode=bench", "stages=null"])
    assert isinstance(done.exception, UserError), done.output
    assert "`mode: bench` of a run is started with `trinity run`" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_who_renders_is_told_who_feeds_a_monitor() -> None:
    deployment = deployment_of("gsm8k", **{"monitor.monitor_type": "mlflow"})
    (note,) = render_notes(deployment, "k8s", "cluster")
    assert "mlflow" in note and "--monitor FOLDER" in note


def test_who_renders_is_told_which_parts_cannot_be_found_here() -> None:
    config = {"buffer.explorer_input.default_workflow_type": "agents_of_the_image.Agent"}
    deployment = deployment_of("gsm8k", **config)
    (note,) = render_notes(deployment, "compose", "one-node")
    assert "there is no module 'agents_of_the_image'" in note
    assert "the explorer fails the run unless it finds it" in note


def test_the_buffer_is_allowed_what_the_experiment_reads_and_no_more() -> None:
    plain = deployment_of("addition")
    assert "TRINITY_BUFFER_TASKSET_ADDRESSES" not in plain.environment("buffer")
    assert "TRINITY_BUFFER_FUNCTION_TENANTS" not in plain.environment("buffer")
    table = "postgresql://reader@10.0.0.7/sums"
    url = {"server_url": "http://127.0.0.1:8005"}
    juicer = TaskOperator(name="data_juicer", args=dict(url), is_own=False)
    pipeline = ResolvedTaskPipeline(operators=(juicer,), further_paths=("owner/rows", "/work/more"))
    rows = plain.plan.stages[-1].experience_buffer
    experts = rows.model_copy(update={"storage_type": "sql", "path": table, "table": "t"})
    taskset = plain.plan.stages[-1].tasksets[0].model_copy(update={"task_pipeline": pipeline})
    deployment = with_stage(auxiliary_buffers=(experts,), tasksets=(taskset,))
    given = deployment.environment("buffer")["TRINITY_BUFFER_TASKSET_ADDRESSES"]
    expected = ("hub:owner/rows", table, "http://127.0.0.1:8005")
    assert set(given.split(",")) == {f"default={place}" for place in expected}
    with_plugins = replace(deployment, plugin_dir=Path("/work/own"))
    assert with_plugins.environment("buffer")["TRINITY_BUFFER_FUNCTION_TENANTS"] == "default"
    place = {
        "stages[1].buffer.trainer_input.experience_buffer.path": "postgresql://writer@10.0.0.8/rows"
    }
    writing = deployment_of("addition", **place).environment("buffer")
    assert (
        writing["TRINITY_BUFFER_TASKSET_ADDRESSES"] == "default=postgresql://writer@10.0.0.8/rows"
    )


@pytest.mark.parametrize("target", ["compose", "k8s"])
def test_manifests_say_that_functions_are_trusted_and_what_that_means(
    target: Target, tmp_path: Path
) -> None:
    deployment = replace(deployment_of("addition"), plugin_dir=tmp_path)
    renderer = ManifestRenderer(
        deployment=deployment, target=target, overlay="one-node", output=tmp_path / "rendered"
    )
    renderer.write_manifests()
    name = "buffer.yaml" if target == "k8s" else "compose.override.yaml"
    lines = (tmp_path / "rendered" / name).read_text().splitlines()
    [place] = [number for number, line in enumerate(lines) if FUNCTION_TRUST in line]
    assert lines[place - 1].lstrip() == f"# {TRUST_COMMENT}"
    [note] = render_notes(deployment, target, "one-node")
    assert FUNCTION_TRUST in note
