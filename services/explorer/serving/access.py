"""Access control of a served model: a key suffices on loopback, other addresses need tokens."""

import hmac
import secrets
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from services.explorer.openai_api.errors import error_response
from trinity.errors import Unauthenticated, UserError
from trinity.runtime.http.server import bearer_token
from trinity.runtime.http.tls import renewing_context
from trinity.runtime.rpc import audit
from trinity.runtime.security.authorization import Caller, Scope
from trinity.runtime.security.credentials import CERTIFICATE, KEY, VARIABLE, Credentials
from trinity.runtime.security.loopback import is_loopback
from trinity.runtime.security.secret_files import read_private, write_private

if TYPE_CHECKING:
    from trinity.runtime.security.tokens import TokenKeys

METHOD = "openai-compatible"
"""Name in the audit log."""
KEY_BYTES = 32


def read_or_create_key(path: Path) -> str:
    """Returns the key in a file, which is created with a random one if it is missing.

    Raises: UserError when others may read it, or it is empty.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, secrets.token_urlsafe(KEY_BYTES))
    if not (key := read_private(path).decode(errors="replace").strip()):
        raise UserError(f"{path}, which holds the key of the served model, is empty: remove it")
    return key


@dataclass(frozen=True)
class ServingAccessPolicy:
    """Plain HTTP with a key on loopback only, or TLS with tokens; there is no other mode."""

    host: str
    security: Credentials
    key: str = field(repr=False)
    tenant: str
    key_file: Path | None = None
    """The file with the key, if it was generated."""

    def check_host(self) -> None:
        """Raises UserError when others could reach the address without any protection."""
        if not self.security.is_on and not is_loopback(self.host):
            raise UserError(
                f"refusing to serve at `explorer.listen_address: {self.host}`, where other "
                "machines reach it, without TLS and tokens: use 127.0.0.1, or set "
                f"{VARIABLE} to a folder that `trinity certs` has made"
            )

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The server's TLS context; None for plain HTTP.

        Raises: UserError naming the file that is missing.
        """
        if not self.security.is_on:
            return None
        return renewing_context(self.security.file(CERTIFICATE), self.security.file(KEY))

    def refusal(self, request: Request) -> Response | None:
        """Returns the response to an unauthorized request; None for an authorized one."""
        bearer = bearer_token(request)
        if self.security.is_on:
            return self._token_refusal(bearer, request.client.host if request.client else "")
        if hmac.compare_digest(bearer.encode(), self.key.encode()):
            return None
        return error_response(
            401,
            "authentication_error",
            "send `explorer.rollout_model.api_key` as a bearer token, or where none is given the "
            "content of the file `api_key` in the directory of what is served",
            code="invalid_api_key",
        )

    def _token_refusal(self, token: str, peer: str) -> Response | None:
        caller: Caller | None = None
        try:
            caller = self._keys.caller_of(token)
        except Unauthenticated as error:
            status, kind, why = 401, "authentication_error", str(error)
        else:
            if Scope.SUBMIT in caller.scopes and caller.bound_tenant in ("", self.tenant):
                return None
            status, kind = 403, "permission_error"
            why = f"it takes a token of this tenant with the scope `{Scope.SUBMIT}`"
        audit.log_refusal("asking the model", method=METHOD, peer=peer, caller=caller)
        return error_response(status, kind, why, code="invalid_api_key")

    @cached_property
    def _keys(self) -> "TokenKeys":
        return self.security.token_keys()
