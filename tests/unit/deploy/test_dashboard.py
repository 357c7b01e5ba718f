"""Dashboard and alerts use figures that are measured, by the names that Prometheus has for them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.manifests import SHIPPED
from tests.unit.subtests import as_subtests
from trinity.runtime.telemetry import metrics, names
from trinity.runtime.telemetry.metrics import INSTRUMENTS, Instrument

Panel = dict[str, Any]
OBSERVABILITY = SHIPPED / "observability"
DASHBOARD = OBSERVABILITY / "grafana" / "dashboards" / "trinity.json"
UNITS = {"s": "_seconds", "1": ""}
SERIES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
OF_OTHERS = {
    *("up", "kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes"),
    *("node_filesystem_avail_bytes", "node_filesystem_size_bytes"),
}
"""Series of Prometheus, the kubelet and node_exporter."""
RULES = OBSERVABILITY / "alerts.yaml"
CASES = Path(__file__).parent / "alert_cases.yaml"
LABELS = {
    *("job", "instance", "le"),
    *("trinity_outcome", "trinity_sync", "trinity_wait_owner", "trinity_wait_for"),
}
"""Attributes that are not in `trinity.runtime.telemetry.names`: of others, or of one figure."""
KEYWORDS = {"and", "or", "unless", "bool"}
COLUMNS = 24


def in_prometheus(one: Instrument) -> set[str]:
    """The series of an instrument, as the collector's exporter `prometheus` names them.

    What is no letter or digit becomes `_`; a unit in braces is left out, others are spelled out; a
    gauge of unit 1 would be a `_ratio`.
    """
    unit = "" if one.unit.startswith("{") else UNITS[one.unit]
    if one.unit == "1" and one.kind in ("gauge", "observed"):
        unit = "_ratio"
    base = re.sub(r"[^a-zA-Z0-9:]+", "_", one.name) + unit
    return {base + end for end in SERIES.get(one.kind, ("",))}


def panels() -> Iterator[Panel]:
    yield from json.loads(DASHBOARD.read_text())["panels"]


def figures() -> list[Panel]:
    return [one for one in panels() if one["type"] != "row"]


def expressions(panel: Panel) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def metrics_of(expression: str) -> set[str]:
    """Its names that are neither functions, labels nor words of the language."""
    bare = re.sub(r"\{[^}]*\}|\b(by|without|on|ignoring)\s*\([^)]*\)", " ", expression)
    bare = re.sub(r"\b[a-zA-Z_]\w*\s*\(", " ", bare)
    return set(re.findall(r"\b[a-zA-Z_:][\w:]*", bare)) - KEYWORDS


def labels_of(expression: str) -> set[str]:
    """Those by which it groups or chooses."""
    grouped = re.findall(r"\b(?:by|without)\s*\(([^)]*)\)", expression)
    chosen = re.findall(r"\{([^}]*)\}", expression)
    words = re.findall(r"\w+", " ".join(grouped))
    return {*words, *re.findall(r"(\w+)\s*(?:=|!)", " ".join(chosen))}


@pytest.mark.parametrize(
    ("instrument", "series"),
    [
        (metrics.ASSIGNMENTS_LEASED, {"trinity_lease_assignments_total"}),
        (metrics.READY, {"trinity_rows_ready"}),
        (metrics.OUTBOX_SECONDS, {"trinity_explorer_unconfirmed_age_seconds"}),
        (
            metrics.REWARD,
            {"rl_reward_value_bucket", "rl_reward_value_sum", "rl_reward_value_count"},
        ),
    ],
)
def test_names_are_those_of_the_collectors_exporter(
    instrument: Instrument, series: set[str]
) -> None:
    assert in_prometheus(instrument) == series


def test_the_collector_adds_suffixes_and_no_namespace() -> None:
    exporter = yaml.safe_load((OBSERVABILITY / "collector.yaml").read_text())["exporters"]
    assert exporter["prometheus"].keys() == {"endpoint"}


def test_everything_measured_is_in_a_panel() -> None:
    shown = {name for one in figures() for text in expressions(one) for name in metrics_of(text)}
    assert [one.name for one in INSTRUMENTS.values() if not in_prometheus(one) & shown] == []


def test_every_metric_and_label_of_a_panel_exists() -> None:
    known = OF_OTHERS.union(*map(in_prometheus, INSTRUMENTS.values()))
    attributes = {value for key, value in vars(names).items() if key.isupper()}
    labels = LABELS | {re.sub(r"\W", "_", one) for one in attributes}
    listed = json.loads(DASHBOARD.read_text())["templating"]["list"]
    variables = {one["name"] for one in listed}
    assert variables == {"job", "instance", "tenant", "stage"}
    for panel in figures():
        for text in expressions(panel):
            assert metrics_of(text) <= known, panel["title"]
            assert metrics_of(text), panel["title"]
            assert labels_of(text) <= labels, panel["title"]
            assert set(re.findall(r'=~"\$(\w+)"', text)) <= variables, panel["title"]
        legends = " ".join(target["legendFormat"] for target in panel["targets"])
        assert set(re.findall(r"\{\{(\w+)\}\}", legends)) <= labels, panel["title"]


def test_counters_are_rates_and_histograms_quantiles_or_means() -> None:
    of_kind = {name: one.kind for one in INSTRUMENTS.values() for name in in_prometheus(one)}
    for panel in figures():
        for text in expressions(panel):
            growing = [n for n in metrics_of(text) if of_kind.get(n) in ("counter", "histogram")]
            for name in growing:
                assert re.search(rf"\b(rate|increase|delta)\({name}\b", text), panel["title"]


def test_panels_have_a_title_a_unit_and_a_place_of_their_own() -> None:
    all_panels = list(panels())
    assert len({one["id"] for one in all_panels}) == len(all_panels)
    assert len({one["title"] for one in all_panels}) == len(all_panels)
    for panel in figures():
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "prometheus"
    for one, other in combinations([panel["gridPos"] for panel in all_panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(one["gridPos"]["x"] + one["gridPos"]["w"] <= COLUMNS for one in all_panels)


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def test_every_metric_of_an_alert_exists_and_its_runbook_says_what_to_do() -> None:
    known = OF_OTHERS.union(*map(in_prometheus, INSTRUMENTS.values()))
    page = (SHIPPED.parent / "docs" / "operations.md").read_text()
    section = page.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    for rule in alerts():
        assert metrics_of(rule["expr"]) - {"group_left"} <= known, rule["alert"]
        assert rule["annotations"]["runbook"] == "docs/operations.md#alerts"
        assert f"| `{rule['alert']}` |" in section, rule["alert"]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load(CASES.read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for fires in (True, False):
        names = {case["alertname"] for case in cases if bool(case["exp_alerts"]) is fires}
        assert names == {rule["alert"] for rule in alerts()}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
@as_subtests(
    "arguments",
    [
        ("check", "rules", RULES),
        ("test", "rules", CASES),
        ("check", "config", "--syntax-only", OBSERVABILITY / "prometheus.yml"),
        ("check", "config", "--syntax-only", "/dev/stdin"),
    ],
)
def test_promtool_accepts_rules_cases_and_configurations(arguments: tuple[str | Path, ...]) -> None:
    in_kubernetes = (OBSERVABILITY / "prometheus-kubernetes.yml").read_text()
    # Debian's Prometheus is built without the discovery of Kubernetes.
    known = "".join(
        line for line in in_kubernetes.splitlines(True) if "kubernetes_sd_configs" not in line
    )
    done = subprocess.run(
        ["promtool", *arguments],
        input=known,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_in_expressions_are_found() -> None:
    text = 'sum by (le, a) (rate(b_bucket{c!="d"}[5m])) / (sum(rate(e_count[5m])) > 0) and f'
    assert metrics_of(text) == {"b_bucket", "e_count", "f"}
    assert labels_of(text) == {"le", "a", "c"}
