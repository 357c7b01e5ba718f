"""The token that a process shows with each call, read anew when its file has changed."""

from pathlib import Path

import grpc


class TokenFile(grpc.AuthMetadataPlugin):  # type: ignore[misc]  # the library has no types
    """Adds the token to each call; whoever rotates it only replaces the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = (0, 0)
        self._token = ""

    def __call__(
        self, _: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback
    ) -> None:
        """Answer the library's question for the call's metadata."""
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
