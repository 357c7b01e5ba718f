"""Credentials of a process: its folder of certificates and its token, read again on change."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from trinity.errors import UserError

if TYPE_CHECKING:
    from trinity.runtime.security.tokens import TokenKeys
VARIABLE = "TRINITY_SECURITY_DIR"
# The first three have the names of cert-manager and of Kubernetes' secrets of type TLS.
CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITY = "ca.crt"
TOKEN = "token"
TOKEN_KEYS = "token-keys.pem"
_ANSWERS = {"true": True, "1": True, "false": False, "0": False}
_HINT = f"`trinity certs` makes such folders, and {VARIABLE} names one"


class _RenewingContext(ssl.SSLContext):
    """A client's context whose connections show the certificate that is there when they begin."""

    def follow(self, security: "Credentials") -> None:
        """Loads the certificate, and again before each connection that begins after a change."""
        self._security, self._stamp = security, security.certificate_stamp()
        self.load_cert_chain(security.file(CERTIFICATE), security.file(KEY))

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        """Begins a connection of asyncio."""
        stamp = self._security.certificate_stamp()
        if stamp != self._stamp and self._security.has_whole_certificate():
            self.load_verify_locations(self._security.file(AUTHORITY))
            self.follow(self._security)
        return super().wrap_bio(*arguments, **more)


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


@dataclass(frozen=True, slots=True)
class Credentials:
    """The folder, or None for a process that uses plaintext, which is for loopback only."""

    folder: Path | None = None
    bearer: str = field(default="", repr=False)
    """A token that replaces the folder's token, if not empty."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Credentials":
        """Returns the folder that `TRINITY_SECURITY_DIR` names."""
        return cls.from_folder(environment.get(VARIABLE, ""))

    @classmethod
    def from_folder(cls, folder: str) -> "Credentials":
        """Returns the folder of this name; an empty name means plaintext."""
        return cls(Path(folder)) if folder else PLAINTEXT

    @property
    def is_on(self) -> bool:
        """True if certificates and tokens are sent and required."""
        return self.folder is not None

    def for_bearer(self, token: str) -> "Credentials":
        """Returns the same certificates with the token of another caller."""
        return replace(self, bearer=token)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Returns a client's certificate and authority, and its token for each call.

        Raises: UserError naming the file that is missing.
        """
        if self.bearer:
            token = grpc.access_token_call_credentials(self.bearer)
        else:
            token = grpc.metadata_call_credentials(TokenFile(self.file(TOKEN)), name="bearer")
        return grpc.composite_channel_credentials(self.tokenless_credentials(), token)

    def tokenless_credentials(self) -> grpc.ChannelCredentials:
        """Returns credentials without a token, for a client that only checks a service's health.

        Raises: UserError naming the file that is missing.
        """
        return grpc.ssl_channel_credentials(*self._pem(AUTHORITY, KEY, CERTIFICATE))

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns server credentials that require client certificates; new files apply at once.

        Raises: UserError naming the file that is missing.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(), self._newest_configuration, True
        )

    def token_keys(self) -> "TokenKeys":
        """Returns the keys with which a server verifies tokens.

        Raises: UserError when the file is missing or holds something else.
        """
        from trinity.runtime.security.tokens import (
            TokenKeys,  # imported late: takes a tenth of a second
        )

        return TokenKeys(self.file(TOKEN_KEYS))

    def ssl_context(self) -> ssl.SSLContext:
        """Returns the context for a connection to the broker.

        Raises: UserError naming the file that is missing.
        """
        context = _RenewingContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.file(AUTHORITY))
        context.follow(self)
        return context

    def certificate_stamp(self) -> tuple[int, ...]:
        """Returns a value that changes when the own certificate, key or authority is replaced."""
        assert self.folder is not None, "a plain process has no credentials"
        try:
            status = [(self.folder / name).stat() for name in (AUTHORITY, KEY, CERTIFICATE)]
        except FileNotFoundError:  # they are being replaced
            return ()
        return tuple(value for file in status for value in (file.st_mtime_ns, file.st_ino))

    def has_whole_certificate(self) -> bool:
        """Returns true unless the key is not the certificate's: both are being replaced."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
                self.file(CERTIFICATE), self.file(KEY)
            )
            return self.file(AUTHORITY).stat().st_size > 0
        except (OSError, UserError):
            return False

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        authority, key, certificate = self._pem(AUTHORITY, KEY, CERTIFICATE)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def _newest_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """Called at each handshake; None keeps the current one while files are replaced."""
        try:
            return self._server_configuration()
        except UserError:
            return None

    def _pem(self, *names: str) -> list[bytes]:
        return [_read(self.file(name)) for name in names]

    def file(self, name: str) -> Path:
        """Returns one of the folder's files.

        Raises: UserError when it is missing.
        """
        assert self.folder is not None, "a plain process has no credentials"
        path = self.folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing: {_HINT}")
        return path


PLAINTEXT = Credentials()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def operator_allows(variable: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Takes the operator's word, true or false in a variable.

    Without one, only processes without credentials may: they have no secrets.
    """
    given = environment.get(variable, "").strip().lower()
    if not given:
        return not Credentials.from_environment(environment).is_on
    if given not in _ANSWERS:
        raise UserError(f"{variable} is `{given}`: give true or false")
    return _ANSWERS[given]
