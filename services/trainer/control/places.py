"""The place of a host in a gang: its ranks, its address, and the interface that this is on."""

import ipaddress
import os
from dataclasses import dataclass

import psutil

from services.trainer.settings import TrainerSettings
from trinity.errors import UserError
from trinity.security.loopback import is_loopback

GLOO = "GLOO_SOCKET_IFNAME"
INTERFACES = (GLOO, "NCCL_SOCKET_IFNAME")
"""Variables of gloo and NCCL; what the operator sets stays."""
ADDRESS = "TRINITY_TRAINER_GANG_ADDRESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlaces:
    """The ranks of one host, and where the first rank of all listens."""

    num_ranks: int
    first: int
    num_local: int
    master_address: str
    master_port: int


def ranks_per_host(num_ranks: int, num_hosts: int) -> int:
    """Returns the ranks of each host.

    Raises: UserError if they do not divide.
    """
    if num_ranks % num_hosts:
        raise UserError(
            f"{num_ranks} ranks cannot be shared out evenly over {num_hosts} hosts "
            f"(TRINITY_TRAINER_NUM_HOSTS): give a multiple of {num_hosts} as `trainer.rank_num`"
        )
    return num_ranks // num_hosts


def check_place(settings: TrainerSettings) -> None:
    """Checks a host's settings before it does anything.

    Raises: UserError naming the variable.
    """
    num_hosts, host = settings.num_hosts, settings.host
    if host >= num_hosts:
        raise UserError(
            f"TRINITY_TRAINER_HOST is {host}, and TRINITY_TRAINER_NUM_HOSTS {num_hosts}: hosts are "
            "counted from 0"
        )
    if host and not settings.leader:
        raise UserError(
            f"TRINITY_TRAINER_HOST is {host}, and host 0 leads: give its host:port as "
            "TRINITY_TRAINER_LEADER"
        )
    if host and is_loopback(settings.gang_address) and not is_loopback(_host_of(settings.leader)):
        raise UserError(
            f"{ADDRESS} is {settings.gang_address}, which the leader {settings.leader} does not "
            "reach: give this host's address in a private network that only the hosts of the gang "
            "reach"
        )
    if num_hosts > 1:
        interface_variables(settings.gang_address)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]


def interface_of(address: str) -> str:
    """Returns the network interface of an address of this host.

    What ranks say to one another is neither encrypted nor authenticated, so the address must be of
    loopback or of a private network. Raises: UserError.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError as error:
        raise UserError(f"{ADDRESS} is {address}: give an IP address of this host") from error
    if parsed.is_unspecified or not (parsed.is_private or parsed.is_loopback):
        raise UserError(
            f"{ADDRESS} is {address}, and ranks talk without encryption: give this host's address "
            "in a private network that only the hosts of the gang reach"
        )
    for name, found in psutil.net_if_addrs().items():
        for own in found:
            own_address = own.address.partition("%")[0]
            if own_address == address or (parsed.is_loopback and own_address == "127.0.0.1"):
                return name
    raise UserError(f"{ADDRESS} is {address}, which no network interface of this host has")


def interface_variables(address: str) -> dict[str, str]:
    """Returns the variables that bind collectives to the interface of an address.

    Raises: UserError if the operator names an interface that does not exist.
    """
    found = interface_of(address)
    known = psutil.net_if_addrs()
    variables = {}
    for variable in INTERFACES:
        name = os.environ.get(variable)
        if name is None:
            variables[variable] = found
        elif not _exists(variable, name, list(known)):
            raise UserError(
                f"{variable} is {name}, and this host has the interfaces {', '.join(sorted(known))}"
            )
    return variables


def _exists(variable: str, names: str, known: list[str]) -> bool:
    """gloo takes names; NCCL takes beginnings, names after `=`, and after `^` what is left out."""
    if variable == GLOO or names.startswith("="):
        return all(name in known for name in names.removeprefix("=").split(","))
    return names.startswith("^") or all(
        any(own.startswith(name) for own in known) for name in names.split(",")
    )
