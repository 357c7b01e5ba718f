"""Executors whose workers meet at a port, as in vLLM up to 0.27; an engine imports them."""

from vllm.utils.network_utils import get_distributed_init_method, get_open_port
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class AtPort(UniProcExecutor):  # type: ignore[misc]  # vLLM has no types
    """Names a port to its worker."""

    def _distributed_args(self) -> tuple[str, int, int]:
        _, rank, local_rank = super()._distributed_args()
        return get_distributed_init_method("127.0.0.1", get_open_port()), rank, local_rank


class AtOpenPort(AtPort):
    """The control: its worker opens the port that it is told."""

    def _init_executor(self) -> None:
        from services.explorer.engine.vllm_worker import WeightReloadExtension

        del WeightReloadExtension.distributed_init_method  # of this process alone
        super()._init_executor()
