"""What Nomad makes of the shipped jobs: networks, places to write to, the end of an experiment."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.unit.deploy.manifests import SERVICES
from tests.unit.deploy.nomad_jobs import Block, config_of, job_file, variables_of

JOBS = ("one-node", "cluster")
COMMAND = """#!/bin/sh
echo "$@" >> {calls}
exit $(sed -n "$(wc -l < {calls})p" {codes})
"""
"""Stands for `trinity`: the file of codes has one a call."""


@pytest.mark.parametrize("job", JOBS)
def test_a_task_that_listens_on_its_groups_port_is_in_that_network(job: str) -> None:
    """Without a word docker puts it into a network of its own, which has no such address."""
    listening = []
    file = job_file(job)
    for group in file.within("group"):
        (network,) = group.of_kind("network")
        for task in group.of_kind("task"):
            if "_LISTEN" in variables_of(task, file):
                listening.append(task.name)
                config = config_of(task).attributes
                in_bridge = network.attributes.get("mode") == '"bridge"'
                assert in_bridge or config.get("network_mode") == '"host"', task.name
    assert sorted(listening) == sorted(SERVICES)


@pytest.mark.parametrize("job", JOBS)
def test_a_service_with_a_read_only_root_has_a_place_for_temporary_files(job: str) -> None:
    """One where compiled kernels may be loaded from, which docker's tmpfs refuses."""
    file = job_file(job)
    services = [task for task in file.within("task") if task.name in SERVICES]
    assert len(services) == len(SERVICES)
    for task in services:
        assert config_of(task).attributes["readonly_rootfs"] == "true"
        variables = "".join(variables_of(task, file).split())
        assert 'TMPDIR="/local"' in variables, task.name


def gang() -> tuple[Block, Block, str]:
    """The group of trainers, its task and what that is given."""
    file = job_file("cluster")
    (group,) = (one for one in file.within("group") if one.name == "trainer")
    (task,) = group.of_kind("task")
    return group, task, "".join(variables_of(task, file).split())


def test_the_trainers_of_a_gang_are_numbered_and_on_the_address_that_they_listen_on() -> None:
    group, _, given = gang()
    assert group.attributes["count"] == "var.trainers"
    for variable, value in (
        ("NUM_HOSTS", "${var.trainers}"),
        ("HOST", "${NOMAD_ALLOC_INDEX}"),
        ("GANG_ADDRESS", "${NOMAD_IP_grpc}"),
        ("LISTEN", "${NOMAD_IP_grpc}:${NOMAD_PORT_grpc}"),
    ):
        assert f'TRINITY_TRAINER_{variable}="{value}"' in given
    (constraint,) = group.of_kind("constraint")
    assert constraint.attributes["operator"] == '"distinct_hosts"'


def test_explorers_of_one_engine_are_numbered_and_others_look_for_no_leader() -> None:
    file = job_file("cluster")
    (group,) = (block for block in file.within("group") if block.name == "explorer")
    (task,) = group.of_kind("task")
    given = "".join(variables_of(task, file).split())
    for variable, value in (
        ("NUM_HOSTS", '"${var.explorer_hosts}"'),
        ("HOST", 'var.explorer_hosts>1?"${NOMAD_ALLOC_INDEX}":"0"'),
        ("ENGINE_ADDRESS", '"${NOMAD_IP_grpc}"'),
    ):
        assert f"TRINITY_EXPLORER_{variable}={value}" in given
    (shared,) = file.of_kind("locals")
    assert shared.attributes["engine_leader"].startswith("var.explorer_hosts > 1 ?")


def test_the_first_trainer_is_found_by_a_tag_and_does_not_look_for_itself() -> None:
    """A variable that changes restarts a task: the leader's own appearance must not."""
    group, task, _ = gang()
    (service,) = group.of_kind("service")
    assert service.list_of("tags") == ["host-${NOMAD_ALLOC_INDEX}"]
    template, _ = task.of_kind("template")
    assert "TRINITY_TRAINER_LEADER=${local.leader}" in template.attributes["data"]
    (shared,) = job_file("cluster").of_kind("locals")
    asked: str = json.loads(shared.attributes["leader"])
    assert asked.startswith('{{ if ne (env "NOMAD_ALLOC_INDEX") "0" }}')
    assert f"nomadService {service.attributes['name']} }}}}" in asked
    assert '.Tags | contains "host-0"' in asked


def experiment(job: str) -> Block:
    """The task that submits."""
    (task,) = (one for one in job_file(job).within("task") if one.name == "experiment")
    return task


def submitted(job: str, codes: list[int], folder: Path) -> tuple[int, list[str]]:
    """How the task ends when `trinity` ends so, and how it was called."""
    calls, answers = folder / "calls", folder / "codes"
    answers.write_text("".join(f"{code}\n" for code in codes))
    for name, text in (
        ("trinity", COMMAND.format(calls=calls, codes=answers)),
        ("sleep", "#!/bin/sh\n"),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    config = config_of(experiment(job))
    command = [*config.list_of("entrypoint"), *config.list_of("args")]
    done = subprocess.run(
        command, env={"PATH": f"{folder}:/usr/bin:/bin"}, timeout=30, stderr=subprocess.PIPE
    )
    assert not done.stderr, done.stderr.decode()
    return done.returncode, calls.read_text().splitlines()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_on_one_node_an_experiment_that_has_ended_is_not_started_again(
    code: int, tmp_path: Path
) -> None:
    """The group starts again what does not end with 0, and `submit` goes on with a failed one."""
    ended, calls = submitted("one-node", [code], tmp_path)
    assert ended == 0
    place = "--synchronizer=127.0.0.1:50051 --buffer=127.0.0.1:50052"
    assert calls == [f"deploy submit --plan=/local/plan.json {place}"]


@pytest.mark.parametrize("code", [3, 130, 137])
def test_on_one_node_what_was_not_submitted_or_is_lost_is_started_again(
    code: int, tmp_path: Path
) -> None:
    ended, _ = submitted("one-node", [code], tmp_path)
    assert ended != 0


@pytest.mark.parametrize("code", [0, 1, 2])
def test_in_a_cluster_an_experiment_ends_as_it_ended(code: int, tmp_path: Path) -> None:
    ended, calls = submitted("experiment", [3, 3, code], tmp_path)
    assert ended == code
    assert len(calls) == 3, "where nobody answered it is submitted again"
    assert calls[0].startswith("deploy submit --plan=/local/plan.json --synchronizer=")
