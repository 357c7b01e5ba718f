"""The nodes of a SLURM job: which part of a run is where, and what it is told."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.deploy.test_gpus import deployment, of_four_machines, on_two_machines
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.run.launch.machine import claimed_gpus
from trinity.run.launch.spread import SpreadRun, job_nodes
from trinity.run.local.addresses import InfrastructureFiles, ServiceAddresses
from trinity.run.local.process_spec import ProcessSpec
from trinity.run.local.services import StackContext, service_processes

NODES = {"g1": "10.9.0.1", "g2": "10.9.0.2", "g3": "10.9.0.3", "g4": "10.9.0.4"}
SCONTROL = "".join(
    f"echo 'NodeName={name} Arch=x86_64 NodeAddr={address} NodeHostName={name} Port=6818'\n"
    for name, address in NODES.items()
)


@pytest.fixture
def in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On g2, whose scontrol lists the nodes in its own order; eight GPUs are ours."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{SCONTROL}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "g[1-4]")
    monkeypatch.setenv("SLURMD_NODENAME", "g2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    monkeypatch.setattr("trinity.run.launch.spread.own_address", lambda _: NODES["g2"])


def specs_of(plan: ExperimentPlan, folder: Path) -> Mapping[str, ProcessSpec]:
    """What is started, by its name."""
    own = NODES["g2"]
    addresses = ServiceAddresses(
        **{
            f"{name}": f"{own}:{port}"
            for port, name in enumerate(
                ("synchronizer", "buffer", "trainer", "explorer"), start=5000
            )
        },
        nats_url="",
        postgres_dsn="",
    )
    files = InfrastructureFiles(
        buffer_nats_url=folder,
        explorer_nats_url=folder,
        buffer_postgres_dsn=folder,
        synchronizer_postgres_dsn=folder,
    )
    around = StackContext(job_dir=folder, log_level="INFO", addresses=addresses, files=files)
    spread = SpreadRun.over_job(plan, explorers=1)
    return {one.spec.name: one.spec for one in spread.services(service_processes)(around)}


def variables(spec: ProcessSpec) -> dict[str, str]:
    """Those of a gang or an engine."""
    shown = ("NUM_HOSTS", "HOST", "LEADER", "ADDRESS")
    return {name: value for name, value in spec.env.items() if name.endswith(shown)}


@pytest.mark.usefixtures("in_a_job")
def test_a_gang_begins_on_the_nodes_own_first(tmp_path: Path) -> None:
    specs = specs_of(of_four_machines().plan, tmp_path)
    assert {name: spec.node for name, spec in specs.items()} == {
        "synchronizer": "",
        "buffer": "",
        "trainer": "",
        "trainer on g1": "g1",
        "trainer on g3": "g3",
        "explorer on g4": "g4",
    }
    assert specs["trainer"].env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert "CUDA_VISIBLE_DEVICES" not in specs["trainer on g1"].env, "SLURM gives its step GPUs"
    assert variables(specs["trainer on g3"]) == {
        "TRINITY_TRAINER_NUM_HOSTS": "3",
        "TRINITY_TRAINER_HOST": "2",
        "TRINITY_TRAINER_LEADER": f"{NODES['g2']}:5002",
        "TRINITY_TRAINER_GANG_ADDRESS": NODES["g3"],
    }
    assert variables(specs["explorer on g4"]) == {}
    assert specs["explorer on g4"].log_file == tmp_path / "log" / "g4" / "explorer.log"


@pytest.mark.usefixtures("in_a_job")
def test_an_engine_is_led_where_its_first_explorer_is(tmp_path: Path) -> None:
    specs = specs_of(on_two_machines().plan, tmp_path)
    leader, follower = specs["explorer on g1"], specs["explorer on g3"]
    assert variables(leader)["TRINITY_EXPLORER_HOST"] == "0"
    led_by = variables(follower)["TRINITY_EXPLORER_LEADER"]
    assert led_by == leader.env["TRINITY_EXPLORER_LISTEN"]
    assert led_by.startswith(NODES["g1"])


@pytest.mark.usefixtures("in_a_job")
def test_certificates_name_the_address_of_each_part() -> None:
    hosts = SpreadRun.over_job(of_four_machines().plan, explorers=1).hosts
    assert hosts.own == NODES["g2"]
    assert hosts.certified["nats"] == hosts.certified["buffer"] == [NODES["g2"]]
    assert hosts.certified["trainer"] == [NODES[name] for name in ("g2", "g1", "g3")]
    assert hosts.certified["explorer"] == [NODES["g4"]]


@pytest.mark.usefixtures("in_a_job")
def test_a_job_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"the job has 4 nodes, and this run needs 5.*render"):
        SpreadRun.over_job(of_four_machines().plan, explorers=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(UserError, match=r"the job has 2 GPUs on this node, and this run uses 8"):
        SpreadRun.over_job(of_four_machines().plan, explorers=1)


def test_explorers_are_counted_in_a_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"`--explorers` shares.*this is none: write one"):
        job_nodes({})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"`scontrol show node.*does not name the job's nodes"):
        job_nodes({"SLURM_JOB_NODELIST": "g1", "SLURMD_NODENAME": "g1"})


def test_gpus_that_slurm_gave_need_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two jobs of one user on one node, each sees its own first GPU as 0."""
    plan = deployment(mode="colocate", cluster={"gpu_per_node": 1}).plan
    assert claimed_gpus(plan) is not None
    monkeypatch.setenv("SLURM_JOB_GPUS", "5")
    assert claimed_gpus(plan) is None
