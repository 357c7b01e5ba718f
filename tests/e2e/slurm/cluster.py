"""A SLURM of two nodes on loopback: its daemons, and what users of it do."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.model_free.stack import REPOSITORY
from trinity.run.local.addresses import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "runuser")
ADDRESSES = ("10.213.77.1", "10.213.77.2", "10.213.77.3")
"""Of the nodes, on the loopback interface: private ones, for which certificates are asked."""
PATIENCE_SECONDS = 900.0
PAUSE_SECONDS = 0.1
CONFIG = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
MpiDefault=none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
SlurmdParameters=config_overrides
PartitionName=main Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName=n{n} NodeHostname=localhost NodeAddr={address} Port={port} "
    "CPUs=64 RealMemory=200000 Gres=gpu:1\n"
)
GPUS = "NodeName=n[1-3] Name=gpu File=/dev/null\n"
"""One each that nothing computes on: SLURM counts and names it."""
CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n"


def what_is_missing() -> str:
    """A sentence, or nothing."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        return (
            f"SLURM cannot be tried here without {', '.join(missing)}: "
            "apt-get install slurm-wlm munge"
        )
    return "" if os.geteuid() == 0 else "SLURM cannot be tried here: its daemons need root"


@functools.cache
def user() -> str:
    """An ordinary one, where this Python is not in a folder of root's alone."""
    command = ["runuser", "-u", "nobody", "--", sys.executable, "-c", ""]
    tried = subprocess.run(command, capture_output=True)
    return "root" if tried.returncode else "nobody"


def until(is_so: Callable[[], object], what: str) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:.0f} s: {what}"
        time.sleep(PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running SLURM; `root` is the shared file system."""

    root: Path

    @property
    def program(self) -> Path:
        """Of the environment on the shared file system."""
        return self.root / "environment" / "bin" / "trinity"

    @property
    def environment(self) -> dict[str, str]:
        """Of a user's shell: the one that runs the tests, without what pytest set."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return {
            **kept,
            "SLURM_CONF": str(self.root / "slurm.conf"),
        }

    def said(self, *command: str) -> str:
        """What a command says that a user runs."""
        done = subprocess.run(
            ["runuser", "-u", user(), "--", *command],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self, script: Path, *options: str) -> str:
        """The job's number."""
        return self.said("sbatch", "--parsable", *options, str(script)).strip()

    def job(self, number: str) -> dict[str, str]:
        """A job's fields."""
        shown = self.said("scontrol", "show", "job", number, "--oneliner")
        return dict(word.partition("=")[::2] for word in shown.split())

    def requeue(self, number: str) -> None:
        """Has a job started again at once, rather than after the two minutes that SLURM leaves."""
        self.said("scontrol", "requeue", number)
        until(lambda: self.job(number)["JobState"] == "PENDING", f"the end of job {number}'s start")
        self.said("scontrol", "update", f"JobId={number}", "StartTime=now")

    def ended(self, number: str) -> dict[str, str]:
        """A job's fields once it has ended."""
        states = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        until(lambda: self.job(number)["JobState"] not in states, f"the end of job {number}")
        return self.job(number)


@contextlib.contextmanager
def running_cluster(root: Path) -> Iterator[Cluster]:
    """Starts a cluster in a folder that its users may write to; stops all that it started."""
    cluster = Cluster(root)
    _write_files(cluster)
    daemons = [
        [
            *("runuser", "-u", "munge", "--", "munged", "--foreground"),
            *(f"--{name.replace('_', '-')}={root}/munge/{name}" for name in ("socket", "key_file")),
            *(f"--{name}-file={root}/munge/{name}" for name in ("pid", "log", "seed")),
        ],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", f"n{n}"] for n in range(1, len(ADDRESSES) + 1)),
    ]
    with contextlib.ExitStack() as stack:
        for address in ADDRESSES:
            stack.enter_context(_address(address))
        for number, daemon in enumerate(daemons):
            stack.enter_context(_daemon(daemon, cluster, root / f"daemon-{number}.log"))
            if not number:
                until((root / "munge" / "socket").exists, "munge")
        until(lambda: _num_idle(cluster) == len(ADDRESSES), "nodes that are idle")
        try:
            yield cluster
        finally:
            cluster.said("scancel", f"--user={user()}")
            until(lambda: not cluster.said("squeue", "--noheader"), "no job")


@contextlib.contextmanager
def _address(address: str) -> Iterator[None]:
    """An address of this machine alone, from which the first node's answers the others."""
    here, local = f"{address}/32", ("dev", "lo", "table", "local")
    source = ("proto", "kernel", "scope", "host", "src", ADDRESSES[0])
    subprocess.run(["ip", "addr", "add", here, "dev", "lo"], check=True)
    subprocess.run(["ip", "route", "replace", "local", here, *local, *source], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "addr", "del", here, "dev", "lo"], check=True)
        command = ["ip", "route", "del", "local", here, *local]
        subprocess.run(command, stderr=subprocess.DEVNULL)  # the first one's is gone by now


@contextlib.contextmanager
def _daemon(command: list[str], cluster: Cluster, log: Path) -> Iterator[None]:
    environment = {**os.environ, **cluster.environment}
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()


def _num_idle(cluster: Cluster) -> int:
    try:
        return cluster.said("sinfo", "--Node", "--noheader", "--format=%N %t").count("idle")
    except AssertionError:
        return 0


def _write_files(cluster: Cluster) -> None:
    root = cluster.root
    root.chmod(0o1777)  # as /tmp, which munge accepts
    tracking = "cgroup" if Path("/sys/fs/cgroup/freezer").is_dir() else "linuxproc"
    config = CONFIG.format(control=free_port(), root=root, tracking=tracking)
    for n, address in enumerate(ADDRESSES, start=1):
        port = free_port()
        config += NODE.format(n=n, address=address, port=port)
        (root / f"spool-n{n}").mkdir()
    (root / "slurm.conf").write_text(config)
    (root / "gres.conf").write_text(GPUS)
    (root / "cgroup.conf").write_text(CGROUPS)
    (root / "state").mkdir()
    munge = root / "munge"
    munge.mkdir()
    (munge / "key_file").write_bytes(os.urandom(128))
    (munge / "key_file").chmod(0o600)
    for path in (munge, munge / "key_file"):
        shutil.chown(path, "munge", "munge")
    program = cluster.program
    program.parent.mkdir(parents=True)
    command = f'exec {sys.executable} -P -m tests.e2e.slurm.model_free_trinity "$@"'
    program.write_text(f"#!/bin/sh\nPYTHONPATH={REPOSITORY} {command}\n")
    program.chmod(0o755)


if __name__ == "__main__":
    sys.exit(what_is_missing() or 0)
