"""Child processes: their command, the identity they run under, their end with their parent."""

import contextlib
import os
import pwd
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from trinity.errors import UserError
from trinity.runtime.process import exec_as

_FALLBACK_NOBODY = 65_534
_PROBE_SECONDS = 30.0


def module_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Returns the command that runs a module, whatever lies in the current folder.

    With `-m` alone a file there with the name of a module, `random` or the `services` of another
    checkout, would be imported in its place.
    """
    return [python, "-P", "-m", module, *arguments]


def kill_marked(mark: str) -> int:
    """Kills all other processes that were started with `mark`, a variable and its value.

    Processes give it on to those that they start, also to those that leave their group and parent.
    """
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return sum(_kill_if_marked(pid, mark.encode()) for pid in numbers if pid != os.getpid())


def _kill_if_marked(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError):  # gone meanwhile, or owned by another user
        descriptor = os.pidfd_open(pid)
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False


@dataclass(frozen=True, slots=True)
class Identity:
    """A way to execute a command; `owner` is the user and group that its files will belong to."""

    kind: str
    uid: int
    gid: int

    @property
    def owner(self) -> tuple[int, int]:
        return (self.uid, self.gid) if self.kind == "user" else (os.geteuid(), os.getegid())

    def command(self, argv: list[str], *, death_signal: int) -> list[str]:
        """Wraps a command so that it runs under this identity and dies with its parent."""
        numbered = self.kind in ("user", "namespace")
        name = f"{self.kind}:{self.uid}:{self.gid}" if numbered else self.kind
        python = [sys.executable, "-I", "-S", str(Path(exec_as.__file__).resolve())]
        return [*python, name, str(int(death_signal)), *argv]


OWN_IDENTITY = Identity("self", -1, -1)


def database_identity(programs: Path, folder: Path) -> Identity:
    """Returns the first identity with which the database's program runs and writes in `folder`."""
    if os.geteuid() != 0:
        return OWN_IDENTITY
    refusals = []
    for identity in _root_identities(folder / "data"):
        refusal = _probe(identity, programs, folder)
        if refusal is None:
            return identity
        refusals.append(refusal)
    raise UserError(
        f"Postgres must not run as root, and root could neither hand it to another user nor to a "
        f"user namespace here ({'; '.join(refusals)}); start as a normal user, or set "
        f"TRINITY_POSTGRES_DSN to a running database"
    )


def _root_identities(data: Path) -> list[Identity]:
    nobody = _nobody()
    if not data.exists():
        return [Identity("user", *nobody), Identity("namespace", *nobody)]
    owner = data.stat()
    if owner.st_uid == 0:
        return [Identity("namespace", *nobody)]
    return [Identity("user", owner.st_uid, owner.st_gid)]


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return _FALLBACK_NOBODY, _FALLBACK_NOBODY
    return entry.pw_uid, entry.pw_gid


def _probe(identity: Identity, programs: Path, folder: Path) -> str | None:
    """Returns the reason why the identity does not work, or None if it does."""
    with contextlib.suppress(OSError):  # not needed if it may override modes
        os.chown(folder, *identity.owner)
    script = 'touch "$1/.probe" && rm "$1/.probe" && exec "$2" --version'
    shell = ["/bin/sh", "-c", script, "probe", str(folder), str(programs / "postgres")]
    argv = identity.command(shell, death_signal=signal.SIGKILL)
    outcome = subprocess.run(argv, capture_output=True, text=True, timeout=_PROBE_SECONDS)
    if outcome.returncode == 0:
        return None
    lines = outcome.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {outcome.returncode}"
