"""The ledger of a stage: which directories of weights its trainer has announced.

A model is served without any connection, also when its run is over, so files alone must tell which
weights are the run's. The ledger names each announced directory with the hash of its manifest, and
is authenticated (HMAC-SHA256) with the run's key, which only the user of the run can read.

    ledger = WeightsLedger(folder=stage_folder, stage="rft", key=LedgerKey.create(job_dir))
    ledger.write(entries)
    entries = ledger.read()      # LedgerError: forged, of another run, or not there
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trinity.errors import TrinityError
from trinity.weights.manifest import HashHex, Sha256Hex, make_durable, read_regular_file

KEY_FILE = "weights.key"
LEDGER_FILE = "announced.json"
KEY_BYTES = 32
PURPOSE = b"trinity announced weights v1\0"


class LedgerError(TrinityError):
    """The ledger or its key cannot be used; the text names the file and says what to do."""


class LedgerEntry(BaseModel):
    """One announced directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: str = Field(pattern=r"^v\d+-\d+(-\d+)?$")
    version: int = Field(ge=0)
    incarnation: int = Field(ge=1)
    manifest_sha256: Sha256Hex
    weights_sha256: HashHex = ""
    weights_blake3: HashHex = ""


class LedgerContent(BaseModel):
    """All announced weights of one stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """The key of a run, a file of mode 0600 in its directory."""

    secret: bytes = field(repr=False)

    @classmethod
    def create(cls, job_dir: Path) -> "LedgerKey":
        """Returns the run's key, creating it if it does not exist.

        Raises: LedgerError.
        """
        path = job_dir / KEY_FILE
        if not path.exists():
            job_dir.mkdir(parents=True, exist_ok=True)
            _create_once(path, secrets.token_hex(KEY_BYTES))
        return cls.read(job_dir)

    @classmethod
    def read(cls, job_dir: Path) -> "LedgerKey":
        """Returns the run's key.

        Raises: LedgerError where it is missing, or others could have read or put it there.
        """
        path = job_dir / KEY_FILE
        _check_private(path, job_dir)
        try:
            secret = bytes.fromhex(read_regular_file(path, 4 * KEY_BYTES).decode())
        except (OSError, ValueError) as error:
            raise LedgerError(f"{path} cannot be read as a key: {error}") from error
        if len(secret) != KEY_BYTES:
            raise LedgerError(f"{path} is not a key: it holds {len(secret)} bytes, not {KEY_BYTES}")
        return cls(secret)

    def sign(self, content: str) -> str:
        """Returns the code that authenticates a content."""
        return hmac.new(self.secret, PURPOSE + content.encode(), hashlib.sha256).hexdigest()


def _create_once(path: Path, content: str) -> None:
    """Creates the file whole, unless another process was faster."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        if not path.exists():
            try:
                os.link(partial, path)
            except FileExistsError:
                return
            make_durable(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _check_private(path: Path, job_dir: Path) -> None:
    try:
        status, folder = path.lstat(), job_dir.stat()
    except OSError as error:
        raise LedgerError(
            f"{path}, the key of the run's announced weights, cannot be read ({error.strerror}): "
            "run this service as the user of the run, and keep the file with the run's directory"
        ) from error
    if not stat.S_ISREG(status.st_mode) or status.st_uid != folder.st_uid:
        raise LedgerError(f"{path} is not a file of the run's user: another user put it there")
    if status.st_mode & 0o077:
        raise LedgerError(f"others can read or write {path}: `chmod 600` it")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLedger:
    """The ledger of one stage. Written as a whole: readers see the old or the new one."""

    folder: Path
    """The stage's folder, which holds the directories under `weights`."""
    stage: str
    key: LedgerKey

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self.folder / LEDGER_FILE

    def write(self, entries: Iterable[LedgerEntry]) -> None:
        """Replaces the ledger durably."""
        content = LedgerContent(stage=self.stage, entries=tuple(entries)).model_dump_json()
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{LEDGER_FILE}.{os.getpid()}")
        partial.write_text(json.dumps({"content": content, "hmac": self.key.sign(content)}))
        make_durable(partial)
        partial.replace(self.path)
        make_durable(self.folder)

    def read(self) -> tuple[LedgerEntry, ...]:
        """Returns the announced directories.

        Raises: LedgerError where there is no ledger, or it is not this run's and stage's own.
        """
        try:
            signed = json.loads(read_regular_file(self.path))
            content, code = str(signed["content"]), str(signed["hmac"])
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise LedgerError(f"{self.path} is not a ledger: {error}") from error
        if not hmac.compare_digest(code.encode(), self.key.sign(content).encode()):
            raise LedgerError(f"{self.path} was not written with the run's key")
        try:
            ledger = LedgerContent.model_validate_json(content)
        except ValidationError as error:
            raise LedgerError(f"{self.path}: {error.errors()[0]['msg']}") from error
        if ledger.stage != self.stage:
            raise LedgerError(f"{self.path} is the ledger of stage {ledger.stage!r}")
        return ledger.entries
