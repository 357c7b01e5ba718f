"""Prometheus scrapes every service of a stack that runs an experiment; no label holds an id."""

import asyncio
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.telemetry.test_whole_chain import METRICS, STEPS, plan_of
from tests.support.model_free.experiment import run_to_end
from tests.support.model_free.stack import model_free_stack
from tests.unit.deploy.test_dashboard import in_prometheus
from tests.unit.telemetry.test_prometheus import promtool, scrape
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.run.local.addresses import free_port
from trinity.runtime.security.credentials import AUTHORITY, TOKEN
from trinity.runtime.telemetry import metrics

SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}|[0-9a-f]{16}")
QUERY = "sum by (job) (trinity_service_ready)"
SCRAPE_SECONDS = 60


@asynccontextmanager
async def finished_stack(root: Path) -> AsyncIterator[tuple[dict[str, str], Path]]:
    """A secured stack after an experiment: the addresses of its metrics, the operator's folder."""
    at = {name: f"127.0.0.1:{free_port()}" for name in SERVICES}
    variables = {name: {f"TRINITY_{name.upper()}_METRICS_LISTEN": at[name]} for name in SERVICES}
    plan = plan_of(root)
    async with model_free_stack(plan.job_path, environment=variables, secure=True) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan, stack.addresses.security)
        assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
        yield at, Path(stack.addresses.security_dir)


async def texts_of(at: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What each service answers to a scrape."""
    token = (folder / TOKEN).read_text()
    texts = {}
    for name, address in at.items():
        url = f"https://{address}/metrics"
        status, texts[name] = await asyncio.to_thread(scrape, url, folder, token)
        assert status == 200, texts[name]
    return texts


async def test_every_service_answers_with_its_figures_and_no_ids(tmp_path: Path) -> None:
    async with finished_stack(tmp_path) as (at, folder):
        texts = await texts_of(at, folder)
    for service, told in METRICS.items():
        families = list(text_string_to_metric_families(texts[service]))
        samples = [sample for family in families for sample in family.samples]
        names = {sample.name for sample in samples}
        assert not [one.name for one in told if not in_prometheus(one) & names], service
        for always in (metrics.CREDENTIAL_EXPIRY, metrics.SERVICE_READY):
            assert in_prometheus(always) <= names, service
        values = [value for sample in samples for value in sample.labels.values()]
        assert not [value for value in values if ID.search(value)], service
        codes = {sample.labels.get("rpc_response_status_code", "OK") for sample in samples}
        assert all(code.isupper() for code in codes), codes
        if shutil.which("promtool"):
            assert promtool(texts[service]) == (0, ""), service
    assert f'trinity_train_step{{trinity_stage="rft"}} {STEPS}.0' in texts["trainer"]
    assert f'trinity_weights_published{{trinity_stage="rft"}} {STEPS}.0' in texts["trainer"]


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed")
async def test_a_prometheus_server_scrapes_all_of_them(tmp_path: Path) -> None:
    async with finished_stack(tmp_path) as (at, folder):
        with prometheus(tmp_path, at, folder) as url:
            async with asyncio.timeout(SCRAPE_SECONDS):
                while len(found := await asyncio.to_thread(ask, url)) < len(SERVICES):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
    assert found == {f"trinity-{name}": "1" for name in SERVICES}


@contextmanager
def prometheus(root: Path, at: Mapping[str, str], folder: Path) -> Iterator[str]:
    """A server that scrapes each service each second."""
    port = free_port()
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": f"trinity-{name}",
                "scheme": "https",
                "tls_config": {"ca_file": str(folder / AUTHORITY), "server_name": name},
                "authorization": {"credentials_file": str(folder / TOKEN)},
                "static_configs": [{"targets": [address]}],
            }
            for name, address in at.items()
        ],
    }
    file = root / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    argv = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={root / 'data'}"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with subprocess.Popen(argv) as server:
        try:
            yield f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(QUERY)}"
        finally:
            server.terminate()


def ask(url: str) -> dict[str, str]:
    """The result of the query by job; nothing while the server starts."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            results = json.load(answer)["data"]["result"]
    except OSError:
        return {}
    return {result["metric"]["job"]: result["value"][1] for result in results}
