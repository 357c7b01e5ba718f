"""Serves a model of arithmetic in a process of its own, with few files: what attacks are run on.

    python -m tests.integration.explorer.served_process 256 [CONNECTIONS]

The arguments are the limit of open files, and of connections if it does not follow from the files.
The first line of output is the address.
"""

import asyncio
import os
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from services.explorer.openai_api.chat import ResponseWriter
from services.explorer.openai_api.handler import ApiHandler
from services.explorer.serving.access import ServingAccessPolicy
from services.explorer.serving.pool import ModelBorrower, ServingPool
from services.explorer.serving.server import ModelServer
from services.explorer.types import model_weights
from tests.unit.explorer.builders import ArithmeticEngine, CharacterTokenizer, build_plan
from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.logs import configure_logging
from trinity.runtime.security.credentials import PLAINTEXT

SERVED_KEY = "a key"


def model_server(folder: Path, limits: HttpLimits) -> ModelServer:
    """A server of a model of arithmetic, as mode serve builds it."""
    [plan] = build_plan(folder).stages
    pool = ServingPool([ArithmeticEngine()], loaded=model_weights("/model"), min_open=1)
    tokenizer = CharacterTokenizer()
    return ModelServer(
        access=ServingAccessPolicy(
            host="127.0.0.1", security=PLAINTEXT, key=SERVED_KEY, tenant="default"
        ),
        port=0,
        is_ready=lambda: pool.num_open > 0,
        borrower=ModelBorrower(plan=plan, lend=pool.lend, tokenizer=tokenizer, names=("m",)),
        handler=ApiHandler(writer=ResponseWriter(model_path="m", tokenizer=tokenizer)),
        names=("m",),
        table=ConnectionTable(limits),
    )


async def serve(folder: Path, limits: HttpLimits, told: TextIO) -> None:
    server = model_server(folder, limits)
    async with server.open(1.0):
        print(server.address, file=told, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    files = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    # Lines of the log, which go to standard output, are for the caller's file.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    configure_logging("explorer", "INFO", "text")
    limits = HttpLimits.from_open_files()
    if len(sys.argv) > 2:
        limits = HttpLimits(max_connections=int(sys.argv[2]))
    with TemporaryDirectory() as folder:
        asyncio.run(serve(Path(folder), limits, told))


if __name__ == "__main__":
    main()
