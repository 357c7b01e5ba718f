"""The listening socket of Studio: plaintext on loopback, beyond it TLS with a certificate."""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from trinity.errors import UserError
from trinity.runtime.host_port import join_address
from trinity.runtime.http.listener import open_port
from trinity.runtime.http.tls import renewing_context
from trinity.runtime.security.credentials import CERTIFICATE, KEY, VARIABLE, Credentials
from trinity.runtime.security.loopback import is_loopback


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

    def tls_context(self) -> ssl.SSLContext | None:
        """Returns the context of new connections; None for plaintext.

        Raises: UserError if the certificate cannot be used.
        """
        if self.certificate is None or self.key is None:
            return None
        return renewing_context(self.certificate, self.key)

    def open(self) -> socket.socket:
        """Opens the port itself, so that its number is known and its address is certain.

        Raises: UserError if it is taken, or if the host is not one of this machine's.
        """
        try:
            return open_port(self.host, self.port)
        except OSError as error:
            raise UserError(
                f"cannot serve Studio on {join_address(self.host, self.port)}: {error.strerror}; "
                "give another --port, or --port 0 for any that is free"
            ) from error
