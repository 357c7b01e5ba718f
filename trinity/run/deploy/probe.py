"""Checks the health of a service on this host: python -m trinity.run.deploy.probe SERVICE [--ready]

Checks that the process is alive, or with `--ready` that its dependencies are usable. The address is
read from the service's variable TRINITY_<SERVICE>_LISTEN. Exit code 0 means yes, 1 no, 2 wrong
usage.
"""

import os
import sys
from collections.abc import Mapping, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trinity.api.v1 import buffer_pb2, explorer_pb2, synchronizer_pb2, trainer_pb2
from trinity.errors import UserError
from trinity.runtime.rpc.channel import open_sync_channel
from trinity.runtime.security.credentials import Credentials

ANSWER_SECONDS = 3.0
YES, NO, WRONG = 0, 1, 2

FULL_NAMES = {
    "buffer": buffer_pb2.DESCRIPTOR.services_by_name["BufferService"].full_name,
    "explorer": explorer_pb2.DESCRIPTOR.services_by_name["ExplorerService"].full_name,
    "synchronizer": synchronizer_pb2.DESCRIPTOR.services_by_name["SynchronizerService"].full_name,
    "trainer": trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"].full_name,
}


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Returns the exit code."""
    try:
        address, name = question(arguments, environment)
        security = Credentials.from_environment(environment)
        # A certificate has the service's name, and not the address of each of its hosts.
        channel = open_sync_channel(address, security, server_name=arguments[0], shows_token=False)
    except UserError as error:
        sys.stderr.write(f"probe: {error}\n")
        return WRONG
    with channel:
        return YES if _is_serving(channel, address, name) else NO


def question(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str]:
    """Returns the address and the name to check.

    Raises: UserError when the arguments or the variable are not of that form.
    """
    service, *options = arguments or [""]
    if service not in FULL_NAMES or options not in ([], ["--ready"]):
        raise UserError(f"usage: probe {{{','.join(FULL_NAMES)}}} [--ready]")
    variable = f"TRINITY_{service.upper()}_LISTEN"
    address = environment.get(variable, "")
    if not address or address.endswith(":0"):
        raise UserError(f"{variable} names no fixed port: give it as host:port")
    return address, FULL_NAMES[service] if options else ""


def _is_serving(channel: grpc.Channel, address: str, name: str) -> bool:
    request = health_pb2.HealthCheckRequest(service=name)
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=ANSWER_SECONDS)
    except grpc.RpcError as error:
        sys.stderr.write(f"probe: {address}: {error.code().name}\n")
        return False
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        sys.stderr.write(f"probe: {address} is not ready\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
