"""Addresses of this host that unencrypted traffic between its own processes may use."""

import ipaddress
import os
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from trinity.errors import UserError
from trinity.runtime.security.loopback import is_loopback

GLOO = "GLOO_SOCKET_IFNAME"
INTERFACES = (GLOO, "NCCL_SOCKET_IFNAME")
"""Variables of gloo and NCCL; values set by the operator are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateAddress:
    """An IP address of this host, and the setting that names it.

    Traffic to it is neither encrypted nor authenticated, so it must be of loopback or of a private
    network.

    address = PrivateAddress(address="10.0.0.1", variable="TRINITY_...", speakers="ranks")
    address.interface()   # "eth0"
    """

    address: str
    variable: str
    """The variable that the operator sets."""
    speakers: str
    """The processes that talk there, in the plural."""

    def interface(self) -> str:
        """Returns the network interface that has the address.

        Raises: UserError naming the variable.
        """
        address, given = self.address, f"{self.variable} is {self.address}"
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError as error:
            raise UserError(f"{given}: give an IP address of this host") from error
        if parsed.is_unspecified or not (parsed.is_private or parsed.is_loopback):
            raise UserError(
                f"{given}, and {self.speakers} talk without encryption: give this host's address "
                "in a private network that only the hosts of the gang reach"
            )
        for name, found in psutil.net_if_addrs().items():
            for own in found:
                own_address = own.address.partition("%")[0]
                if own_address == address or (parsed.is_loopback and own_address == "127.0.0.1"):
                    return name
        raise UserError(f"{given}, which no network interface of this host has")

    def check_leader(self, leader: str) -> None:
        """Raises UserError if the leader, host:port, is elsewhere and cannot reach the address."""
        if is_loopback(self.address) and not is_loopback(leader.rpartition(":")[0]):
            raise UserError(
                f"{self.variable} is {self.address}, which the leader {leader} does not reach: "
                "give this host's address in a private network that only the hosts of the gang "
                "reach"
            )

    def interface_variables(self) -> dict[str, str]:
        """Returns the variables that bind collectives to the interface of the address.

        Raises: UserError if the operator names an interface that does not exist.
        """
        found = self.interface()
        known = psutil.net_if_addrs()
        variables = {}
        for variable in INTERFACES:
            name = os.environ.get(variable)
            if name is None:
                variables[variable] = found
            elif not _exist(variable, name, known):
                raise UserError(
                    f"{variable} is {name}, and this host has the interfaces "
                    f"{', '.join(sorted(known))}"
                )
        return variables


def _exist(variable: str, names: str, known: Collection[str]) -> bool:
    """gloo takes names; NCCL takes prefixes, names after `=`, and exclusions after `^`."""
    if variable == GLOO or names.startswith("="):
        return all(name in known for name in names.removeprefix("=").split(","))
    return names.startswith("^") or all(
        any(own.startswith(name) for own in known) for name in names.split(",")
    )


def check_numbered_host(
    *, num_hosts: int, host: int, leader: str, leader_variable: str, address: PrivateAddress
) -> None:
    """Checks a host's settings before it does anything.

    Raises: UserError naming the variable.
    """
    prefix = leader_variable.removesuffix("_LEADER")
    if host >= num_hosts:
        raise UserError(
            f"{prefix}_HOST is {host}, and {prefix}_NUM_HOSTS {num_hosts}: hosts are counted from 0"
        )
    if host and not leader:
        raise UserError(
            f"{prefix}_HOST is {host}, and host 0 leads: give its host:port as {leader_variable}"
        )
    if host:
        address.check_leader(leader)
    if num_hosts > 1:
        address.interface_variables()
