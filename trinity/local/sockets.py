"""Where engines of a stack make unix sockets, which one that is killed leaves behind."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trinity.errors import UserError

VARIABLE = "VLLM_RPC_BASE_PATH"
"""vLLM's: it makes sockets named by UUIDs there, else among all temporary files."""
MAX_FOLDER_BYTES = 107 - len("/00000000-0000-0000-0000-000000000000")
"""What the system takes as a socket's path, less a name."""


def socket_folder(job_dir: Path) -> Path:
    """In the job directory, or where that path is too long, one of its own among others."""
    inside = job_dir / "infra" / "sockets"
    if len(os.fsencode(inside)) <= MAX_FOLDER_BYTES:
        return inside
    digest = hashlib.sha256(os.fsencode(job_dir)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"trinity-{os.getuid()}-{digest}"


def socket_variables(job_dir: Path, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For the explorer; what the person chose stays."""
    return {} if VARIABLE in given else {VARIABLE: str(socket_folder(job_dir))}


def make_socket_folder(job_dir: Path) -> None:
    """An empty one; call it with the directory locked, when nobody of an earlier stack lives.

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
    """With what killed engines left in it."""
    shutil.rmtree(socket_folder(job_dir), ignore_errors=True)
