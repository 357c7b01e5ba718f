"""Insides of libraries that the code uses, each from one file, and the versions they are known for.

For another version, read what the file named here says, run its tests, then add the version.
"""

import asyncio
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest


def release(package: str) -> str:
    return version(package).rsplit(".", 1)[0]


def parameters(function: Callable[..., object]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("package", "known", "file"),
    [
        ("nats-py", {"2.16"}, "trinity/runtime/nats_client.py"),
        ("opentelemetry-sdk", {f"1.{minor}" for minor in range(40, 46)}, "telemetry/sdk.py"),
        ("peft", {"0.19", "0.20", "0.21"}, "services/trainer/checkpoints/lora.py"),
        ("psycopg", {"3.2", "3.3"}, "trinity/runtime/postgres.py"),
        ("sqlalchemy", {"2.0", "2.1"}, "trinity/runtime/sql.py"),
        ("torch", {"2.11", "2.12", "2.13"}, "trinity/weights/process_group.py"),
        ("verl", {"0.9"}, "services/trainer/backend/cpu.py"),
    ],
)
def test_the_installed_version_is_one_whose_insides_are_known(
    package: str, known: set[str], file: str
) -> None:
    assert release(package) in known, f"{package} {version(package)} is new to {file}"


def test_python_has_what_threads_and_child_processes_use() -> None:
    assert (3, 11) <= sys.version_info[:2] <= (3, 14)
    assert parameters(asyncio.tasks._unregister_task) == ("task",)
    assert "self._transport = transport" in inspect.getsource(asyncio.subprocess.Process.__init__)


def test_nats_has_what_its_clients_use() -> None:
    from nats.aio.client import Client
    from nats.aio.transport import TcpTransport
    from nats.protocol import parser

    assert parameters(Client._process_msg) == ("self", "sid", "subject", "reply", "data", "headers")
    assert parameters(Client._process_op_err) == ("self", "e")
    assert parameters(parser.Parser.parse) == ("self", "data")
    assert isinstance(Client()._ps, parser.Parser)
    assert {"needed", "state"} <= vars(Client()._ps).keys()
    assert "_io_writer" in vars(TcpTransport())


def test_opentelemetry_has_what_telemetry_uses() -> None:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    assert "self._batch_processor.shutdown()" in inspect.getsource(BatchSpanProcessor.shutdown)


def test_torch_has_the_options_that_a_process_group_uses() -> None:
    import torch.distributed as dist

    assert {"_devices", "_threads", "_timeout"} <= set(dir(dist.ProcessGroupGloo._Options))


def source(package: str, file: str) -> str:
    """A file's text: importing the package would take seconds."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], file).read_text()


def test_peft_has_the_field_that_a_disabled_adapter_uses() -> None:
    assert "return self._disable_adapters" in source("peft", "tuners/tuners_utils.py")


def test_vllm_hands_its_worker_the_place_where_workers_meet_by_the_attribute_that_is_replaced() -> (
    None
):
    base = source("vllm", "v1/worker/worker_base.py")
    assert "self.distributed_init_method = distributed_init_method" in base
    assert base.index("self.parallel_config = ") < base.index("self.distributed_init_method = ")
    assert "worker_class.__bases__ = worker_class.__bases__ + (" in base
    for worker in ("cpu", "gpu"):
        assert "self.distributed_init_method,\n" in source("vllm", f"v1/worker/{worker}_worker.py")


def test_verl_has_the_functions_that_its_cpu_support_replaces() -> None:
    loader = "def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code)"
    assert loader in source("verl", "utils/model.py")
    assert "def get_hf_auto_model_class(hf_config)" in source("verl", "utils/model.py")
    engine = source("verl", "workers/engine/fsdp/transformer_impl.py")
    assert "CPUOffloadPolicy(pin_memory=" in engine
    assert "from verl.utils.model import get_hf_auto_model_class" in engine


def test_sqlalchemy_and_psycopg_have_what_statements_use() -> None:
    from psycopg import AsyncPipeline
    from sqlalchemy.sql.cache_key import HasCacheKey

    from trinity.runtime.postgres import QuickConnection

    assert parameters(HasCacheKey._generate_cache_key) == ("self",)
    assert {"wait", "pipeline", "_check_connection_ok"} <= set(dir(QuickConnection.__base__))
    sync = inspect.getsource(AsyncPipeline._sync_gen)
    assert sync.index("self._enqueue_sync()") < sync.index("yield from self._communicate_gen()")
    queue = inspect.getsource(AsyncPipeline._enqueue_sync)
    assert "self.command_queue.append(" in queue and "self.result_queue.append(None)" in queue
