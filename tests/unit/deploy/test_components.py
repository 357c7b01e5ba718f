"""Components that an operator adds: certificates by cert-manager, as many explorers as needed."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.kustomized import Object, built, name_of, named, of_kind, workloads
from tests.unit.deploy.manifests import SERVICES, SHIPPED, deployment_of, rendered
from tests.unit.deploy.test_dashboard import OBSERVABILITY, in_prometheus, metrics_of
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.kubernetes import Overlay
from trinity.runtime.security.credentials import AUTHORITY, CERTIFICATE, KEY, TOKEN, TOKEN_KEYS
from trinity.runtime.telemetry.metrics import INSTRUMENTS

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds them")
OF_STORES = {"postgres": "postgres-tls", "nats": "nats-tls", "migrate": "synchronizer-tls"}
"""Parts that have no token: the rest take one from a Secret of its own."""


def with_component(
    name: str, root: Path, deployment: ExperimentDeployment, overlay: Overlay = "cluster"
) -> list[Object]:
    """A kustomization over a rendering, as the page on operations has it."""
    rendered(deployment, "k8s", root / "my-run", overlay)
    (root / "mine").mkdir()
    text = f"resources: [../my-run]\ncomponents: [../my-run/k8s/components/{name}]\n"
    (root / "mine" / "kustomization.yaml").write_text(text)
    return built(root / "mine")


def volume(workload: Object) -> dict[str, Any]:
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    (tls,) = (one for one in volumes if one["name"] == "tls")
    return dict(tls)


@pytest.mark.parametrize("overlay", ["one-node", "cluster"])
def test_certificates_come_from_cert_manager_and_tokens_stay(
    tmp_path: Path, overlay: Overlay
) -> None:
    objects = with_component("cert-manager", tmp_path, deployment_of("addition"), overlay)
    made = {one["spec"]["secretName"]: one for one in of_kind(objects, "Certificate")}
    for workload in workloads(objects):
        name = name_of(workload)
        if name in OF_STORES:
            assert volume(workload)["secret"]["secretName"] == OF_STORES[name]
            assert OF_STORES[name] in made
            continue
        part = name if name in SERVICES else "operator"
        assert "secret" not in volume(workload)
        sources = [one["secret"]["name"] for one in volume(workload)["projected"]["sources"]]
        assert sources == [f"{part}-tls", f"{part}-token"] and sources[0] in made
    for part in (*SERVICES, "postgres", "nats"):
        assert part in made[f"{part}-tls"]["spec"]["dnsNames"]
        assert {"server auth", "client auth"} <= set(made[f"{part}-tls"]["spec"]["usages"])
    issuers = {name_of(one) for one in of_kind(objects, "Issuer")}
    assert {one["spec"]["issuerRef"]["name"] for one in made.values()} <= issuers


def test_names_of_files_are_those_that_cert_manager_writes() -> None:
    assert {CERTIFICATE, KEY, AUTHORITY} == {"tls.crt", "tls.key", "ca.crt"}
    text = (SHIPPED / "k8s/components/cert-manager/kustomization.yaml").read_text()
    for name in (TOKEN, TOKEN_KEYS):
        assert f"--from-file=certs/$part/{name}" in text


def test_an_autoscaler_has_the_number_of_explorers_to_itself(tmp_path: Path) -> None:
    objects = with_component("autoscale", tmp_path, deployment_of("addition"))
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]
    assert "replicas" not in named(objects, target["kind"], target["name"])["spec"]
    (metric,) = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == adapter_rule()["name"]["as"]


def test_an_engine_over_several_hosts_is_not_scaled(tmp_path: Path) -> None:
    wide = deployment_of(
        "gsm8k",
        **{
            "cluster.node_num": 3,
            "cluster.gpu_per_node": 8,
            "explorer.rollout_model.tensor_parallel_size": 16,
        },
    )
    with pytest.raises(subprocess.CalledProcessError) as refused:
        with_component("autoscale", tmp_path, wide)
    assert "/kind" in refused.value.stderr


def adapter_rule() -> dict[str, Any]:
    content = yaml.safe_load((OBSERVABILITY / "prometheus-adapter.yaml").read_text())
    (rule,) = content["externalRules"]
    return dict(rule)


def test_the_adapter_asks_for_series_that_the_buffer_has() -> None:
    known: set[str] = set().union(*map(in_prometheus, INSTRUMENTS.values()))
    rule = adapter_rule()
    assert metrics_of(rule["metricsQuery"]) <= known and rule["seriesQuery"] in known


STAGE = '{trinity_tenant="a", trinity_stage="rft"}'


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
@pytest.mark.parametrize(
    ("credit", "outstanding", "pending", "wanted"),
    [(40, 24, 4, 60), (-8, 0, 0, 0), (0, 10, 30, 0), (None, None, 0, 0)],
    ids=["free credit", "ready rows fill it", "results wait to be stored", "no stage"],
)
def test_rows_are_wanted_until_they_are_ready_or_on_their_way_to_the_database(
    credit: int | None, outstanding: int | None, pending: int, wanted: int, tmp_path: Path
) -> None:
    values = {
        f"trinity_credit_rows{STAGE}": credit,
        f"trinity_rows_outstanding{STAGE}": outstanding,
    }
    values["trinity_stream_pending"] = pending
    series = [{"series": name, "values": f"{v}x5"} for name, v in values.items() if v is not None]
    case = {
        "expr": adapter_rule()["metricsQuery"],
        "eval_time": "2m",
        "exp_samples": [{"labels": "{}", "value": wanted}],
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [case]}
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
