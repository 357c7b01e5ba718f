"""The token that a process sends with each call, read again when its file has changed."""

from pathlib import Path

import grpc


class TokenFile(grpc.AuthMetadataPlugin):  # type: ignore[misc]  # the library has no types
    """Adds the token to each call; to rotate it, replace the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = (0, 0)
        self._token = ""

    def __call__(
        self, _: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback
    ) -> None:
        """Supplies the metadata for a call."""
        try:
            token = self._newest()
        except OSError as error:
            callback((), error)
        else:
            callback((("authorization", f"Bearer {token}"),), None)

    def _newest(self) -> str:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._token = self._path.read_text().strip()
            self._stamp = stamp
        return self._token
