"""TLS of HTTP addresses, with a certificate that may be replaced while they serve."""

import ssl
from pathlib import Path

from trinity.errors import UserError


def renewing_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Returns a server's context; replaced files apply from the next connection on.

    Raises: UserError if the files cannot be used.
    """
    newest = _Renewed(certificate, key)
    context = newest.context()

    def renew(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = newest.context()

    context.sni_callback = renew
    return context


class _Renewed:
    """A context that is made again when the files of its certificate were replaced."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._stamp: tuple[int, ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Returns the context of the files as they are; the last one while they are replaced."""
        try:
            stamp = tuple(file.stat().st_mtime_ns for file in self._files)
            if self._context is None or stamp != self._stamp:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.load_cert_chain(*self._files)
                self._context, self._stamp = context, stamp
        except (OSError, ssl.SSLError) as error:
            if self._context is None:
                raise UserError(f"cannot use the certificate {self._files[0]}: {error}") from error
        return self._context
