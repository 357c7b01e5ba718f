"""Generated passwords and other secrets, in files that only their owner reads."""

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from trinity.errors import UserError

DATABASE, SUPERUSER = "trinity", "admin"
"""The database of a deployment and its first user, as in the addresses that secrets hold."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """A folder of secrets; a password is generated once and reused at later starts."""

    folder: Path

    def password(self, name: str) -> str:
        path = self.folder / f"{name}-password"
        if not path.exists() or not path.stat().st_size:
            self.write_secret(path.name, secrets.token_hex(24))
        return path.read_text().strip()

    def write_secret(self, name: str, content: str) -> Path:
        """Replaces a secret file atomically: readers see the old or the new content."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / name
        write_private(path, content)
        return path


def write_private(path: Path, content: str) -> None:
    """Writes a file of mode 0600 atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_private(path: Path) -> bytes:
    """Reads a key that can let anyone in.

    Raises: UserError when other users may read or replace it; OSError.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & OTHERS:
            raise UserError(
                f"other users may read {path} (mode {mode:04o}) and let anyone in with it: run "
                f"`chmod 600 {path}`, and if any of them has, make another key"
            )
        return file.read()
