"""The GPUs that a run of this machine has for itself, or shares with other runs.

claims = GpuClaims(["0"], alone=True, label="project/name", job_dir=job_dir)
claims.take()                      # UserError if another run has one of them
start(pass_fds=claims.descriptors) # they last until the launcher and the supervisor are gone
claims.release()
"""

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trinity.errors import UserError

DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
MAX_TEXT_BYTES = 4096
UUID_KEY = "GPU UUID"
UUID_PREFIX = "GPU-"


def claims_folder() -> Path:
    """Returns the folder of this user's claims; it is the same for all runs of the machine."""
    return Path("/tmp") / f"trinity-gpus-{os.getuid()}"


def gpu_id(name: str, driver: Path = DRIVER_GPUS) -> str:
    """Returns one name for a GPU that may be named by its number or by (the start of) its UUID.

    Numbers count as `nvidia-smi` does. What the driver does not know keeps its name.
    """
    uuids = [uuid for folder in sorted(driver.glob("*")) if (uuid := _uuid_in(folder))]
    if name.isdecimal() and int(name) < len(uuids):
        return uuids[int(name)]
    if name.startswith(UUID_PREFIX):
        found = [uuid for uuid in uuids if uuid.startswith(name)]
        return found[0] if len(found) == 1 else name
    return name


def _uuid_in(folder: Path) -> str:
    try:
        lines = (folder / "information").read_text().splitlines()
    except OSError:
        return ""
    values = dict(line.partition(":")[::2] for line in lines)
    return values.get(UUID_KEY, "").strip()


class GpuClaims:
    """A run's claims: locks of the kernel, each on a file that names one GPU.

    Runs with separate GPUs for engine and trainer may share them with other such runs, as each
    declares how much memory it takes. A colocated run expects all of the memory to be free.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        *,
        alone: bool,
        label: str,
        job_dir: Path,
        folder: Path | None = None,
        driver: Path = DRIVER_GPUS,
    ) -> None:
        self._gpus = gpus
        self._alone = alone
        self._owner = {"run": label, "directory": str(job_dir), "pid": os.getpid()}
        self._folder = folder or claims_folder()
        self._driver = driver
        self._descriptors: list[int] = []

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors of the locks, to be inherited by what must not outlive them."""
        return tuple(self._descriptors)

    def take(self) -> None:
        """Claims all GPUs, or fails without claiming any.

        Raises: UserError that names the other run.
        """
        try:
            for gpu in dict.fromkeys(self._gpus):
                self._take(gpu)
        except OSError as error:
            self.release()
            raise UserError(
                f"{error.filename or self._folder} keeps which run has a GPU, and cannot be "
                f"written ({error.strerror}): make room in {self._folder.parent}, or make it yours "
                "to write"
            ) from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Releases the claims, once no process of the run uses the GPUs."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _take(self, gpu: str) -> None:
        path = self._safe_folder() / f"{gpu_id(gpu, self._driver).replace('/', '_')}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._descriptors.append(descriptor)
        kind = fcntl.LOCK_EX if self._alone else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(self._refusal(gpu, os.pread(descriptor, MAX_TEXT_BYTES, 0))) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(self._owner).encode(), 0)

    def _safe_folder(self) -> Path:
        """Creates the folder. Raises: UserError if it is not this user's alone."""
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        state = self._folder.lstat()
        is_own = state.st_uid == os.getuid() and not state.st_mode & 0o077
        if not (is_own and self._folder.is_dir() and not self._folder.is_symlink()):
            raise UserError(
                f"{self._folder} keeps which run has a GPU, and is not a folder of yours alone: "
                "remove it"
            )
        return self._folder

    def _refusal(self, gpu: str, text: bytes) -> str:
        other = "another run"
        with suppress(ValueError, KeyError, TypeError):
            owner = json.loads(text)
            if Path(f"/proc/{owner['pid']}").exists():  # of several that share it, one is named
                other = f"the run {owner['run']} in {owner['directory']}"
        why = (
            "`mode: colocate` needs all of its memory"
            if self._alone
            else "that one needs all of its memory (`mode: colocate`)"
        )
        return (
            f"GPU {gpu} is used by {other}, and {why}: stop that run or wait for its end, or give "
            "this one another GPU (CUDA_VISIBLE_DEVICES)"
        )
