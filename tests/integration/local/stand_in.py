"""A process that stands in for a service: live on its address, with misbehaviour on request.

python stand_in.py <host:port> [--grandchild FILE] [--forked FILE] [--ignore-term]
    [--note-stop FILE NAME]
"""

import argparse
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

_STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


def _serve(address: str) -> grpc.Server:
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    server = grpc.server(ThreadPoolExecutor(4))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    return server


def _fork(file: Path) -> None:
    """Leave a process that holds open whatever this one was given, as an engine's core does."""
    if pid := os.fork():
        file.write_text(str(pid))
        return
    os.setsid()
    while True:
        signal.pause()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--grandchild")
    parser.add_argument("--forked")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--note-stop", nargs=2)
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if options.grandchild:
        grandchild = subprocess.Popen([sys.executable, "-c", _STUBBORN], start_new_session=True)
        Path(options.grandchild).write_text(str(grandchild.pid))
    if options.forked:
        _fork(Path(options.forked))
    server = _serve(options.address)
    signal.sigwait([signal.SIGTERM])
    if options.ignore_term:
        signal.sigwait([signal.SIGUSR1])
    if options.note_stop:
        path, name = options.note_stop
        with Path(path).open("a") as file:
            file.write(f"{name}\n")
    server.stop(0).wait()


if __name__ == "__main__":
    main()
