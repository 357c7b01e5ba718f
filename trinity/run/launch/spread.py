"""A run over the nodes of the SLURM job that it was started in."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.nodes import NodePart, node_parts
from trinity.run.launch.machine import VISIBLE, devices_of
from trinity.run.local.addresses import free_port
from trinity.run.local.files import OPERATOR
from trinity.run.local.files import VARIABLE as SOCKETS
from trinity.run.local.hosts import StackHosts
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.services import READY_SECONDS, StackContext, wait_serving
from trinity.runtime.host_port import join_address, own_address

NODES, THIS_NODE = "SLURM_JOB_NODELIST", "SLURMD_NODENAME"
SHOWN_NODE = re.compile(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", re.MULTILINE)
SCONTROL_SECONDS = 60.0
GROUP_ADDRESS = {"trainer": "GANG_ADDRESS", "explorer": "ENGINE_ADDRESS"}
"""Where the machines of a gang or an engine talk to one another."""
Services = Callable[[StackContext], list[ProcessWithProbe]]


def job_nodes(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the job's nodes, this one first, with their addresses as SLURM knows them.

    Raises: UserError outside of a job.
    """
    if not (environment.get(NODES) and environment.get(THIS_NODE)):
        raise UserError(
            "`--explorers` shares a run out over the nodes of a SLURM job, and this is none: write "
            "one with `trinity deploy render --target slurm`, and submit it with `sbatch`"
        )
    command = ["scontrol", "show", "node", environment[NODES], "--oneliner"]
    try:
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=SCONTROL_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        raise UserError(f"`{' '.join(command)}` does not name the job's nodes: {said}") from error
    found = dict(SHOWN_NODE.findall(shown))
    own = environment[THIS_NODE]
    return {own: found.pop(own, own), **found}


def address_of(host: str) -> str:
    """Returns the IPv4 address of a node. Raises: UserError if it has none."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except OSError as error:
        raise UserError(f"the job's node {host} has no IPv4 address here: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPart:
    """A trainer or an explorer, where it is, and where it listens."""

    part: NodePart
    node: str
    """Empty for the launcher's own."""
    host: str
    address: str = ""
    """Where it listens; on the launcher's own node the stack decides."""
    devices: tuple[str, ...] = ()
    """Its GPUs on the launcher's own node; elsewhere it has all that SLURM gives its step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRun:
    """The parts of a run on the nodes of its job.

    spread = SpreadRun.over_job(plan, explorers=2)
    LocalRun(plan=plan, spread=spread, ...)
    """

    own: str
    """This node's address, as the others see it."""
    parts: tuple[PlacedPart, ...]

    @classmethod
    def over_job(cls, plan: ExperimentPlan, explorers: int) -> Self:
        """Shares a plan out over the nodes of the job that this process is in.

        Raises: UserError if there are too few, or too few GPUs on this one.
        """
        deployment = ExperimentDeployment(plan=plan, explorers=explorers, plugin_dir=None)
        deployment.check_hosts()
        wanted, nodes = node_parts(deployment), job_nodes()
        if len(nodes) < len(wanted):
            raise UserError(
                f"the job has {len(nodes)} nodes, and this run needs {len(wanted)}: write it again "
                "with `trinity deploy render --target slurm`, and submit that"
            )
        first, *others = wanted
        this, *names = list(nodes)[: len(wanted)]
        addresses = [address_of(nodes[name]) for name in names]
        own = own_address(addresses[0]) if addresses else address_of(nodes[this])
        elsewhere = [
            PlacedPart(part=part, node=name, host=host, address=join_address(host, free_port()))
            for name, host, (part,) in zip(names, addresses, others, strict=True)
        ]
        return cls(own=own, parts=(*_placed_here(plan, own, first), *elsewhere))

    @property
    def hosts(self) -> StackHosts:
        """The machines of the stack."""
        certified = {name: [self.own] for name in ("synchronizer", "buffer", "nats")}
        for name in GROUP_ADDRESS:
            certified[name] = [placed.host for placed in self.parts if placed.part.service == name]
        return StackHosts(own=self.own, certified=certified, command_on=run_on_node)

    def services(self, among: Services) -> Services:
        """Returns the same services, with trainers and explorers on their nodes."""
        return partial(self._placed, among)

    def _placed(self, among: Services, around: StackContext) -> list[ProcessWithProbe]:
        found = {process.spec.name: process for process in among(around)}
        kept = [process for name, process in found.items() if name not in GROUP_ADDRESS]
        for placed in self.parts:
            process = found.get(placed.part.service)
            if process is None:
                continue
            variables = self._variables(placed, around)
            if placed.node:
                kept.append(_moved(process, placed, variables, around))
                continue
            if devices := ",".join(placed.devices):
                variables[VISIBLE] = devices
            kept.append(
                replace(process, spec=replace(process.spec, env={**process.spec.env, **variables}))
            )
        return kept

    def _variables(self, placed: PlacedPart, around: StackContext) -> dict[str, str]:
        """Returns the variables of one machine of a gang or an engine of several."""
        part, prefix = placed.part, f"TRINITY_{placed.part.service.upper()}_"
        if part.num_hosts == 1:
            return {}
        leader = next(
            other
            for other in self.parts
            if other.part.service == part.service and not other.part.host
        )
        own = {"trainer": around.addresses.trainer, "explorer": around.addresses.explorer}
        variables = {
            "NUM_HOSTS": str(part.num_hosts),
            "HOST": str(part.host),
            GROUP_ADDRESS[part.service]: placed.host,
        }
        if part.host:
            variables["LEADER"] = leader.address if leader.node else own[part.service]
        return {f"{prefix}{name}": value for name, value in variables.items()}


def run_on_node(node: str) -> list[str]:
    """Returns the words before a command that run it on a node of the job.

    SIGTERM, which SLURM sends to every step of a job that it ends, is left to the launcher: it ends
    the run in order, with the step in hand saved.
    """
    one = ("--nodes=1", "--ntasks=1", f"--nodelist={node}", "--cpu-bind=none", "--mpi=none")
    ignore = ("sh", "-c", "trap '' TERM; exec \"$@\"", "sh")
    return [shutil.which("srun") or "srun", *one, "--export=ALL", *ignore]


def _moved(
    process: ProcessWithProbe,
    placed: PlacedPart,
    variables: Mapping[str, str],
    around: StackContext,
) -> ProcessWithProbe:
    """Returns a service as it is on another node, with its logs in a folder of the node's name."""
    service = placed.part.service
    logs = around.job_dir / "log" / placed.node
    logs.mkdir(parents=True, exist_ok=True)
    env = {**process.spec.env, **variables, f"TRINITY_{service.upper()}_LISTEN": placed.address}
    if service == "explorer":
        env["TRINITY_EXPLORER_RUN_LOG_DIR"] = str(logs)
        env.pop(SOCKETS, None)  # that folder may be on the launcher's own disk
    name = f"{service} on {placed.node}"
    security = around.security.credentials_for(OPERATOR)
    spec = replace(
        process.spec, name=name, env=env, node=placed.node, log_file=logs / f"{service}.log"
    )
    return ProcessWithProbe(
        spec, partial(wait_serving, name, placed.address, READY_SECONDS, security)
    )


def _placed_here(
    plan: ExperimentPlan, host: str, parts: tuple[NodePart, ...]
) -> Iterator[PlacedPart]:
    """Yields the parts of the launcher's node, each with its GPUs."""
    devices = devices_of(plan)
    if len(devices) < (wanted := sum(part.gpus for part in parts)):
        raise UserError(
            f"the job has {len(devices)} GPUs on this node, and this run uses {wanted} of each: "
            "write it again with `trinity deploy render --target slurm`, and submit that"
        )
    for part in parts:
        taken, devices = devices[: part.gpus], devices[part.gpus :]
        yield PlacedPart(part=part, node="", host=host, devices=tuple(taken))
