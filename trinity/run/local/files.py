"""Files of a local stack: the folder of its engines' sockets, and its parts' credentials."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from trinity.errors import UserError
from trinity.runtime.security.credentials import PLAINTEXT, Credentials

VARIABLE = "VLLM_RPC_BASE_PATH"
"""vLLM's variable: it creates sockets named by UUIDs there, by default in the temporary folder."""
MAX_FOLDER_BYTES = 107 - len("/00000000-0000-0000-0000-000000000000")
"""The system's limit for a socket's path, minus a name."""
OPERATOR = "operator"
LIFETIME = timedelta(days=365)
"""Longer than a stack runs without a restart."""


def socket_folder(job_dir: Path) -> Path:
    """Returns a folder in the job directory, or a temporary one if that path is too long."""
    inside = job_dir / "infra" / "sockets"
    if len(os.fsencode(inside)) <= MAX_FOLDER_BYTES:
        return inside
    digest = hashlib.sha256(os.fsencode(job_dir)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"trinity-{os.getuid()}-{digest}"


def socket_variables(job_dir: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the explorer's variables; a value set by the user stays."""
    return {} if VARIABLE in given else {VARIABLE: str(socket_folder(job_dir))}


def make_socket_folder(job_dir: Path) -> None:
    """Creates an empty folder; call it with the directory locked and no earlier stack alive.

    Raises: UserError when it cannot be made.
    """
    folder = socket_folder(job_dir)
    remove_socket_folder(job_dir)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"cannot make {folder} for sockets: {error.strerror}") from error


def remove_socket_folder(job_dir: Path) -> None:
    """Removes the folder with the sockets that killed engines left in it."""
    shutil.rmtree(socket_folder(job_dir), ignore_errors=True)


@dataclass(frozen=True, slots=True)
class StackCredentials:
    """The folder of all parts' folders, or None for a stack in plaintext on loopback."""

    root: Path | None = None
    tenant: str = "default"
    """The tenant of the explorer and the trainer."""
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Addresses beyond loopback that the certificates of parts name."""

    def issue_credentials(self) -> None:
        """Issues credentials to every part; the authority is kept: earlier clients stay valid."""
        if self.root is None:
            return
        from trinity.runtime.security.certificates import (  # takes a tenth of a second
            CredentialIssuer,
            parts_of,
        )

        issuer = CredentialIssuer(self.root)
        for part in parts_of(self.hosts, self.tenant):
            issuer.issue(part, LIFETIME)

    def credentials_for(self, part: str) -> Credentials:
        """Returns the credentials of a part."""
        return Credentials(self.root / part) if self.root else PLAINTEXT
