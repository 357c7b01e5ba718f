"""Writes the batch script with which SLURM runs an experiment on the nodes of a lab's cluster.

`trinity run` does all else, from the same file, on the job's first node.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trinity.config.sizing.memory import GIB
from trinity.config.sizing.services import MIB
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.nodes import NodePart, node_parts
from trinity.run.deploy.render import check_gpu_capacity
from trinity.run.deploy.submission import refuse_local_modes
from trinity.run.deploy.values import write_values
from trinity.runtime.owned_places import claim_folder

SCRIPT = "job.sbatch"
STOP_SECONDS = 300
"""Before the job's time is up: the step in hand ends and is saved."""
OF_FIRST_NODE = ("synchronizer", "buffer")
"""Counted on each node, as SLURM gives all nodes of a job the same."""
SERVERS_BYTES, SERVER_CPUS = 2 * GIB, 1
"""The broker and the database."""
UNKNOWN = (
    "the job takes its nodes whole (`--exclusive`, `--mem=0`), as the config.json of a model is "
    "not here: give `--model-config FILE`, or sizes in `values.yaml`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """An experiment as a job.

    job = SlurmJob(deployment=deployment, file=Path("my.yaml"), overrides=(), output=Path("my-run"))
    job.write_script()
    """

    deployment: ExperimentDeployment
    file: Path
    overrides: Sequence[str]
    output: Path

    def write_script(self) -> str:
        """Writes the script; returns the command that submits it.

        Raises: UserError if the nodes cannot run it, or the folder holds something else.
        """
        self.deployment.check_hosts()
        check_gpu_capacity(self.deployment, on_one_node=False)
        nodes = node_parts(self.deployment)
        if len(nodes) > 1:
            refuse_local_modes(self.deployment.plan)
        claim_folder(self.output, "give an empty or a new folder as `--output`")
        write_values(self.output)
        script = self.output / SCRIPT
        script.write_text(self._script(nodes), encoding="utf-8")
        return f"sbatch {shlex.quote(str(script))}"

    def _script(self, nodes: Sequence[Sequence[NodePart]]) -> str:
        directives = "".join(f"#SBATCH --{line}\n" for line in self._directives(nodes))
        return (
            "#!/bin/bash\n"
            f"# {self.deployment.plan.label}: one job, which goes on where it stopped when it is "
            "submitted again.\n"
            "# What is your cluster's own (time, partition, account) is given to `sbatch`, or in "
            "its variables, SBATCH_...\n"
            f"{directives}\n"
            'echo "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0}"\n'
            # In place of the shell, so that SLURM's signals reach the run.
            f"exec {shlex.join(self._command(len(nodes)))}\n"
        )

    def _directives(self, nodes: Sequence[Sequence[NodePart]]) -> Iterator[str]:
        yield f"job-name={self.deployment.name}"
        yield f"nodes={len(nodes)}"
        yield "ntasks-per-node=1"
        if gpus := max(self._gpus(parts) for parts in nodes):
            yield f"gres=gpu:{gpus}"
        sizes = self._sizes(nodes)
        if sizes is None:
            yield from ("exclusive", "mem=0")
        else:
            yield f"cpus-per-task={max(cpus for cpus, _ in sizes)}"
            yield f"mem={max(num_bytes for _, num_bytes in sizes) // MIB}M"
        yield "requeue"
        yield f"signal=B:TERM@{STOP_SECONDS}"
        yield f"chdir={shlex.quote(os.fspath(Path.cwd()))}"
        folder = os.fspath(self.output.resolve()).replace("%", "%%")
        yield f"output={shlex.quote(f'{folder}/%j.log')}"
        yield "open-mode=append"

    def _gpus(self, parts: Sequence[NodePart]) -> int:
        gpus = [part.gpus for part in parts]
        takes_turns = any(stage.takes_turns for stage in self.deployment.plan.stages)
        return max(gpus) if takes_turns else sum(gpus)

    def notes(self) -> Iterator[str]:
        """Yields the notes, if any, as sentences."""
        if self._sizes(node_parts(self.deployment)) is None:
            yield UNKNOWN

    def _sizes(self, nodes: Sequence[Sequence[NodePart]]) -> list[tuple[int, int]] | None:
        """Returns the processors and bytes of memory of each node; None if one is not known."""
        trains = any(stage.needs_training for stage in self.deployment.plan.stages)
        sizes: list[tuple[int, int]] = []
        for parts in nodes:
            names = [part.service for part in parts if trains or part.service != "trainer"]
            found = [self.deployment.sizes(name) for name in (*names, *OF_FIRST_NODE)]
            if not all({"cpus", "memory"} <= size.keys() for size in found):
                return None
            cpus, memory = (sum(size[key] for size in found) for key in ("cpus", "memory"))
            sizes.append((cpus + SERVER_CPUS, memory + SERVERS_BYTES))
        return sizes

    def _command(self, num_nodes: int) -> list[str]:
        environment = Path(self.deployment.values.environment or sys.prefix)
        arguments = [str(environment / "bin" / "trinity"), "run", "--config", str(self.file)]
        if self.deployment.plugin_dir is not None:
            arguments += ["--plugin-dir", str(self.deployment.plugin_dir)]
        if self.deployment.adopted is not None:
            arguments += ["--adopted", str(self.deployment.adopted.file)]
        if num_nodes > 1:
            arguments += ["--explorers", str(self.deployment.explorers)]
        return [*arguments, *self.overrides]
