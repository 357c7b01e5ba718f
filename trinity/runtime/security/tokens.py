"""Bearer tokens: JSON Web Tokens signed with Ed25519, with a tenant, scopes and an expiry."""

import re
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from trinity.errors import Unauthenticated, UserError
from trinity.runtime.security.authorization import EVERY_TENANT, Caller, Scope
from trinity.runtime.security.secret_files import read_private

ALGORITHM = "EdDSA"
AUDIENCE = "trinity"
REQUIRED_CLAIMS = ("aud", "exp", "scope", "sub", "tenant")
MAX_LIFETIME = timedelta(days=365)
MAX_TOKEN_LENGTH = 4_096
MAX_REMEMBERED = 1_024
CLOCK_SECONDS = 300
"""Allowed clock skew of the issuer of tokens; their expiry is exact."""
TENANT = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Without dots: a broker's subject is split at dots, so such a tenant could be taken for another.
"""
_END_OF_KEY = b"-----END PUBLIC KEY-----"


def issue_token(
    signing_key: Path,
    *,
    subject: str,
    tenant: str,
    scopes: Iterable[Scope],
    lifetime: timedelta,
    force: bool = False,
) -> str:
    """Returns a signed token; `force` allows one that lasts longer than a year.

    Raises: UserError when other users may read the key, when it cannot be read, when the tenant's
    name is invalid, or when the token would last too long.
    """
    if lifetime > MAX_LIFETIME and not force:
        raise UserError(
            f"the token would last {lifetime.days:,} days and cannot be taken back: give it at "
            f"most {MAX_LIFETIME.days} days and renew it, or add `--force`"
        )
    if tenant != EVERY_TENANT and not TENANT.fullmatch(tenant):
        raise UserError(
            f"tenant {tenant!r}: a token takes letters, digits, '-' and '_', or '*' for all tenants"
        )
    now = int(time.time())
    claims: dict[str, object] = {
        "aud": AUDIENCE,
        "sub": subject,
        "tenant": tenant,
        "scope": " ".join(sorted(scopes)),
        "iat": now,
        "exp": now + int(lifetime.total_seconds()),
    }
    return jwt.encode(claims, _read_signing_key(signing_key), algorithm=ALGORITHM)


class TokenKeys:
    """The public keys in a PEM file: several are valid while a key is replaced.

    The file is read again when it has changed, so a key that is removed is refused at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = (0, 0)
        self._keys: tuple[Ed25519PublicKey, ...] = ()
        self._known: dict[str, Caller] = {}
        self._refresh()

    def caller_of(self, token: str) -> Caller:
        """Returns the caller that a token identifies.

        Raises: Unauthenticated, also for an expired token; the text does not contain the token.
        """
        self._refresh()
        caller = self._known.get(token) or self._remember(token)
        if time.time() >= caller.expires_at:
            raise Unauthenticated("the token has expired: get a new one (`trinity token`)")
        return caller

    def _remember(self, token: str) -> Caller:
        """Caches a verified token: checking a signature takes a tenth of a millisecond."""
        caller = self._verified(token)
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[token] = caller
        return caller

    def _verified(self, token: str) -> Caller:
        if len(token) > MAX_TOKEN_LENGTH:
            raise Unauthenticated("the token is too long")
        for key in self._keys:
            try:
                claims = jwt.decode(
                    token,
                    key,
                    algorithms=[ALGORITHM],
                    audience=AUDIENCE,
                    # Expiry is checked at each call, here it would be checked only once.
                    options={"require": list(REQUIRED_CLAIMS), "verify_exp": False},
                    leeway=CLOCK_SECONDS,
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.ImmatureSignatureError as error:
                raise Unauthenticated(
                    "the token is not valid yet: set the clock of the machine that issued it"
                ) from error
            except jwt.InvalidTokenError as error:
                raise Unauthenticated("the token is malformed or not meant for this") from error
            return _caller(claims)
        raise Unauthenticated("the token is not signed with a key that is accepted here")

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return
            keys = read_public_keys(self._path)
        except (OSError, UserError) as error:
            if not self._keys:
                raise UserError(f"cannot read the public keys in {self._path}: {error}") from error
            return  # it is being replaced: known keys stay valid until then
        self._stamp, self._keys = stamp, keys
        self._known.clear()


def read_public_keys(path: Path) -> tuple[Ed25519PublicKey, ...]:
    """Returns all keys of a PEM file.

    Raises: UserError when it has no keys, or other contents.
    """
    try:
        blocks = path.read_bytes().split(_END_OF_KEY)[:-1]
        keys = [serialization.load_pem_public_key(block + _END_OF_KEY) for block in blocks]
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"cannot read the public keys in {path}: {error}") from error
    ed25519 = tuple(key for key in keys if isinstance(key, Ed25519PublicKey))
    if not ed25519 or len(ed25519) != len(keys):
        raise UserError(f"{path} must hold Ed25519 public keys in PEM form and nothing else")
    return ed25519


def _caller(claims: dict[str, object]) -> Caller:
    subject, tenant, scope, end = (claims[name] for name in ("sub", "tenant", "scope", "exp"))
    if not isinstance(tenant, str) or not isinstance(scope, str) or not isinstance(subject, str):
        raise Unauthenticated("the token's tenant, scope or subject is no text")
    if not isinstance(end, int | float):
        raise Unauthenticated("the token's end is no number")
    if tenant != EVERY_TENANT and not TENANT.fullmatch(tenant):
        raise Unauthenticated("the token's tenant is no name")
    known = frozenset(Scope(word) for word in scope.split() if word in set(Scope))
    return Caller(subject=subject, tenant=tenant, scopes=known, expires_at=float(end))


def _read_signing_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(read_private(path), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"cannot read the signing key {path}: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{path} holds no Ed25519 private key; `trinity certs` makes one")
    return key
