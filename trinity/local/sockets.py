"""The folder for unix sockets of a stack's engines, which killed engines leave behind."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trinity.errors import UserError

VARIABLE = "VLLM_RPC_BASE_PATH"
"""vLLM's variable: it creates sockets named by UUIDs there, by default in the temporary folder."""
MAX_FOLDER_BYTES = 107 - len("/00000000-0000-0000-0000-000000000000")
"""The system's limit for a socket's path, minus a name."""


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
