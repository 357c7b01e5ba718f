"""The ranks of a host, and its address."""

from dataclasses import dataclass

import trinity
from services.trainer.settings import TrainerSettings
from trinity.errors import UserError
from trinity.runtime.private_network import PrivateAddress, check_numbered_host
from trinity.runtime.rpc.host_group import GroupPlace

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
    check_numbered_host(
        num_hosts=settings.num_hosts,
        host=settings.host,
        leader=settings.leader,
        leader_variable="TRINITY_TRAINER_LEADER",
        address=gang_address(settings.gang_address),
    )


def group_place(settings: TrainerSettings, tenant: str) -> GroupPlace:
    """Returns the place of this host among those of the gang."""
    return GroupPlace(
        group="worker group",
        variables="TRAINER",
        address_variable=ADDRESS,
        num_hosts=settings.num_hosts,
        release=trinity.__version__,
        host=settings.host,
        address=settings.gang_address,
        tenant=tenant,
    )


def gang_address(address: str) -> PrivateAddress:
    """Returns the address of this host at which its ranks talk to others."""
    return PrivateAddress(address=address, variable=ADDRESS, speakers="ranks")
