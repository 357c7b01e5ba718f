"""The listening socket of Studio: plaintext on loopback, beyond it TLS with a certificate."""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import uvicorn
from cryptography import x509

from trinity.errors import UserError
from trinity.runtime.host_port import join_address
from trinity.runtime.security.credentials import CERTIFICATE, KEY, VARIABLE, Credentials
from trinity.runtime.security.loopback import is_loopback

ContextFactory: TypeAlias = Callable[[uvicorn.Config, Callable[[], ssl.SSLContext]], ssl.SSLContext]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A host with a port; `certificate` and `key` are None for plaintext, on loopback only."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_secure(self) -> bool:
        """True if browsers speak TLS to Studio."""
        return self.certificate is not None

    @classmethod
    def of(cls, host: str, port: int, security: Credentials) -> "Listening":
        """Returns where to listen: with TLS wherever others than this machine's users can reach it.

        Raises: UserError if there is no certificate for that.
        """
        if is_loopback(host):
            return cls(host=host, port=port)
        if not security.is_on:
            raise UserError(
                f"Studio does not serve {host} without TLS and tokens: set {VARIABLE} to a folder "
                "that `trinity certs` has made, or give one as --tls-folder, or leave --host out "
                "and reach it through `ssh -L`"
            )
        return cls(
            host=host, port=port, certificate=security.file(CERTIFICATE), key=security.file(KEY)
        )

    def names(self) -> frozenset[str]:
        """Returns the names in the certificate, under which browsers may ask for Studio.

        Raises: UserError if it cannot be read.
        """
        if self.certificate is None:
            return frozenset()
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            raise UserError(
                f"cannot read the names in {self.certificate}: {error}; `trinity certs` makes it "
                "again"
            ) from error
        dns = named.value.get_values_for_type(x509.DNSName)
        addresses = named.value.get_values_for_type(x509.IPAddress)
        return frozenset(name.lower() for name in (*dns, *map(str, addresses)))

    def tls_context(self) -> ssl.SSLContext:
        """Returns the context of new connections; replaced files apply from the next one on."""
        assert self.certificate is not None and self.key is not None, "it serves in plaintext"
        newest = _Renewed(self.certificate, self.key)
        context = newest.context()

        def renew(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = newest.context()

        context.sni_callback = renew
        return context

    def open(self) -> socket.socket:
        """Opens the port itself, so that its number is known and its address is certain.

        Raises: UserError if it is taken, or if the host is not one of this machine's.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
            listener.listen()  # a browser that is faster than the server waits
        except OSError as error:
            listener.close()
            raise UserError(
                f"cannot serve Studio on {join_address(self.host, self.port)}: {error.strerror}; "
                "give another --port, or --port 0 for any that is free"
            ) from error
        return listener

    def context_factory(self) -> ContextFactory | None:
        """Returns what makes uvicorn speak TLS; None for plaintext."""
        return (lambda _, __: self.tls_context()) if self.is_secure else None


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
