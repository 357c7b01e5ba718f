"""What the rendered objects of Kubernetes hold: probes, budgets, jobs, and who reaches whom."""

import shutil
from dataclasses import replace

import pytest

from tests.unit.deploy import kustomized
from tests.unit.deploy.kustomized import (
    Object,
    containers_of,
    labels_of,
    name_of,
    named,
    of_kind,
    stays,
    workloads,
)
from tests.unit.deploy.manifests import SERVICES, deployment_of, rendered
from tests.unit.deploy.policies import Connection, Network, selects
from trinity.cli.main import FAILURE, NO_ANSWER, USER_ERROR
from trinity.run.deploy.kubernetes import Overlay
from trinity.run.deploy.values import DeploymentValues

COLLECTOR = "collector.example"
EXPERIMENT = f"experiment-{deployment_of('addition').job_name}"
STORES = ("postgres", "nats")
PEERS = {
    *((one, "synchronizer", 50051) for one in ("buffer", "trainer", "explorer", EXPERIMENT)),
    *((one, "buffer", 50052) for one in ("trainer", "explorer", EXPERIMENT)),
    *((one, "postgres", 5432) for one in ("synchronizer", "buffer", "migrate")),
    *((one, "nats", 4222) for one in ("buffer", "explorer")),
    *((one, COLLECTOR, 4317) for one in SERVICES),
}
NEEDS_KUBECTL = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds them")


@pytest.fixture(scope="module", params=["one-node", "cluster"])
def overlay(request: pytest.FixtureRequest) -> Overlay:
    chosen: Overlay = request.param
    return chosen


@pytest.fixture(scope="module", params=["read", pytest.param("built", marks=NEEDS_KUBECTL)])
def objects(
    request: pytest.FixtureRequest, overlay: Overlay, tmp_path_factory: pytest.TempPathFactory
) -> list[Object]:
    """Those of an example, as they are written and as kubectl makes them."""
    deployment = replace(
        deployment_of("addition"), values=DeploymentValues(otlp_endpoint=f"http://{COLLECTOR}:4317")
    )
    folder = rendered(deployment, "k8s", tmp_path_factory.mktemp("out"), overlay)
    return kustomized.read(folder) if request.param == "read" else kustomized.built(folder)


@pytest.fixture
def network(objects: list[Object]) -> Network:
    return Network(objects)


def test_all_workloads_are_there(objects: list[Object], overlay: Overlay) -> None:
    staying = {name_of(one) for one in workloads(objects) if stays(one)}
    assert staying == {*SERVICES, *(STORES if overlay == "one-node" else ())}
    ending = {name_of(one) for one in workloads(objects) if not stays(one)}
    assert ending == {"migrate", EXPERIMENT}


def test_what_stays_is_probed(objects: list[Object]) -> None:
    for workload in filter(stays, workloads(objects)):
        name = name_of(workload)
        for container in containers_of(workload):
            assert "startupProbe" in container, name
            if name in SERVICES:
                probe = ["python", "-P", "-m", "trinity.run.deploy.probe", name]
                assert container["livenessProbe"]["exec"]["command"] == probe
                assert container["livenessProbe"]["timeoutSeconds"] >= 10, "Python takes a while"
            assert "readinessProbe" in container, name
            if name in SERVICES:
                assert container["readinessProbe"]["exec"]["command"] == [*probe, "--ready"]


def test_every_container_has_limits_and_requests(objects: list[Object]) -> None:
    for workload in workloads(objects):
        for container in containers_of(workload):
            resources = container["resources"]
            assert "memory" in resources["limits"], name_of(workload)
            assert resources["requests"].keys() >= {"cpu", "memory"}, name_of(workload)


def test_a_drain_asks_for_each_service(objects: list[Object]) -> None:
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert sorted(name_of(one) for one in budgets) == sorted(SERVICES)
    for one in budgets:
        meant = [w for w in workloads(objects) if selects(one["spec"]["selector"], labels_of(w))]
        assert [name_of(workload) for workload in meant] == [name_of(one)]
        assert "minAvailable" not in one["spec"], "a drain would never end"
        policy = one["spec"].get("unhealthyPodEvictionPolicy")
        is_trainer = name_of(one) == "trainer"
        assert policy == (None if is_trainer else "AlwaysAllow"), "ranks that come back are left"


def test_there_is_one_trainer_which_comes_back_after_it_was_told_to_stop(
    objects: list[Object],
) -> None:
    """It ends with 0 then, as after a drain: a Job would be complete. A name is had by one pod."""
    trainer = named(objects, "StatefulSet", "trainer")["spec"]
    assert trainer["replicas"] == 1
    assert trainer["template"]["spec"].get("restartPolicy", "Always") == "Always"
    assert trainer["podManagementPolicy"] == "Parallel", "else wrong settings stand in the way"


def test_an_experiment_is_submitted_again_unless_it_has_ended(objects: list[Object]) -> None:
    job = named(objects, "Job", EXPERIMENT)["spec"]
    rules = {one["action"]: one for one in job["podFailurePolicy"]["rules"]}
    assert rules["FailJob"]["onExitCodes"]["operator"] == "In"
    ends = rules["FailJob"]["onExitCodes"]["values"]
    assert ends == [FAILURE, USER_ERROR] and NO_ANSWER not in ends
    assert job["backoffLimit"] >= 10, "a first start takes a while"


def test_services_are_not_said_to_speak_without_tls(objects: list[Object]) -> None:
    for service in of_kind(objects, "Service"):
        assert [one.get("appProtocol") for one in service["spec"]["ports"]] == [None]


def test_one_job_migrates_and_no_service_does(objects: list[Object]) -> None:
    job = named(objects, "Job", "migrate")
    accounts, synchronizer, buffer = containers_of(job)
    assert accounts["command"] == ["python", "-P", "-m", "trinity.run.deploy.accounts"]
    for container, name in ((synchronizer, "synchronizer"), (buffer, "buffer")):
        assert container["args"] == ["migrate"]
        assert container["image"].partition(":")[0] == f"trinity-{name}"
    for workload in workloads(objects):
        if workload is not job:
            assert all("migrate" not in one.get("args", ()) for one in containers_of(workload))
            variables = [e["name"] for one in containers_of(workload) for e in one.get("env", ())]
            assert not [name for name in variables if "MIGRATE_ON_START" in name]


def test_what_no_policy_allows_is_refused(objects: list[Object]) -> None:
    denied = named(objects, "NetworkPolicy", "nothing-else")["spec"]
    names = named(objects, "NetworkPolicy", "names")["spec"]
    assert set(denied["policyTypes"]) == {"Ingress", "Egress"}
    assert not denied.get("ingress") and not denied.get("egress")
    for workload in workloads(objects):
        assert selects(denied["podSelector"], labels_of(workload)), name_of(workload)
        assert selects(names["podSelector"], labels_of(workload)), name_of(workload)
    (rule,) = names["egress"]
    assert {"protocol": "UDP", "port": 53} in rule["ports"]


def test_names_are_asked_for_where_other_peoples_labels_are(objects: list[Object]) -> None:
    """The pods that answer for names are the cluster's: they have no label of ours."""
    ((peer,),) = (one["to"] for one in named(objects, "NetworkPolicy", "names")["spec"]["egress"])
    assert peer["namespaceSelector"] == {}
    assert selects(peer["podSelector"], {"k8s-app": "kube-dns"})
    assert not selects(peer["podSelector"], {"k8s-app": "other"})


def test_policies_let_everybody_reach_whom_its_variables_name(network: Network) -> None:
    assert network.wanted() == {Connection(*one) for one in PEERS}
    assert [one for one in network.wanted() if not network.allows(one)] == []


def test_policies_let_nobody_reach_anybody_else(network: Network) -> None:
    """A run's own code is in the explorer, which so cannot ask the database or the trainer."""
    hosts = {(one.host, one.port) for one in network.wanted()} - {(COLLECTOR, 4317)}
    every = {
        Connection(name_of(one), host, port)
        for one in workloads(network.objects)
        for host, port in hosts
        if name_of(one) != host
    }
    assert [one for one in every - network.wanted() if network.allows(one)] == []


@pytest.mark.parametrize(
    "policy", ["synchronizer", "buffer", "explorer", "trainer-and-experiment", "telemetry"]
)
def test_without_a_policy_something_is_cut_off(policy: str, network: Network) -> None:
    poorer = network.without(policy)
    assert len(poorer.objects) == len(network.objects) - 1
    assert not all(poorer.allows(one) for one in network.wanted())
