"""The folder from which a process takes its certificate, its authority and its token."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from trinity.errors import UserError
from trinity.security.token_file import TokenFile

if TYPE_CHECKING:
    from trinity.security.tokens import TokenKeys

VARIABLE = "TRINITY_SECURITY_DIR"
# The first three are named as by cert-manager and in Kubernetes' secrets of type TLS.
CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITY = "ca.crt"
TOKEN = "token"
TOKEN_KEYS = "token-keys.pem"
_HINT = f"`trinity certs` makes such folders, and {VARIABLE} names one"


@dataclass(frozen=True, slots=True)
class Security:
    """The folder, or None for a process that talks plainly, which is for loopback only."""

    folder: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Security":
        """What `TRINITY_SECURITY_DIR` names."""
        return cls.of(environment.get(VARIABLE, ""))

    @classmethod
    def of(cls, folder: str) -> "Security":
        """The folder of this name; an empty one is plain."""
        return cls(Path(folder)) if folder else PLAIN

    @property
    def is_on(self) -> bool:
        """Whether certificates and tokens are shown and asked for."""
        return self.folder is not None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client: its certificate, who it trusts, and its token with each call.

        Raises: UserError naming the file that is missing.
        """
        token = grpc.metadata_call_credentials(TokenFile(self.file(TOKEN)), name="bearer")
        return grpc.composite_channel_credentials(self.tokenless_credentials(), token)

    def tokenless_credentials(self) -> grpc.ChannelCredentials:
        """For a client that asks only for a service's health: its certificate, and who it trusts.

        Raises: UserError naming the file that is missing.
        """
        return grpc.ssl_channel_credentials(*self._pem(AUTHORITY, KEY, CERTIFICATE))

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that asks each client for a certificate; new files count at once.

        Raises: UserError naming the file that is missing.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(), self._newest_configuration, True
        )

    def token_keys(self) -> "TokenKeys":
        """The keys by which a server knows tokens.

        Raises: UserError when the file is missing or holds something else.
        """
        from trinity.security.tokens import TokenKeys  # a tenth of a second clients need not wait

        return TokenKeys(self.file(TOKEN_KEYS))

    def ssl_context(self) -> ssl.SSLContext:
        """For a connection to the broker.

        Raises: UserError naming the file that is missing.
        """
        authority, key, certificate = map(self.file, (AUTHORITY, KEY, CERTIFICATE))
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(certificate, key)
        return context

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        authority, key, certificate = self._pem(AUTHORITY, KEY, CERTIFICATE)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def _newest_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Asked for at each handshake; None keeps what there is while files are replaced."""
        try:
            return self._server_configuration()
        except UserError:
            return None

    def _pem(self, *names: str) -> list[bytes]:
        return [_read(self.file(name)) for name in names]

    def file(self, name: str) -> Path:
        """One of the folder's files.

        Raises: UserError when it is missing.
        """
        assert self.folder is not None, "a plain process has no credentials"
        path = self.folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing: {_HINT}")
        return path


PLAIN = Security()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
