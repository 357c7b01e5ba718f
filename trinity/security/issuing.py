"""Creates and renews the folders with the certificates and tokens of processes.

DIR/authority/     ca.crt, ca.key, token-signing.key, token-keys.pem: keep it apart
DIR/<part>/        ca.crt, tls.crt, tls.key, token, token-keys.pem: goes to where the part runs
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from trinity.errors import UserError
from trinity.local.secret_files import SecretFiles
from trinity.security.caller import EVERY_TENANT
from trinity.security.certificates import Pair, make_authority, make_certificate
from trinity.security.folder import AUTHORITY, CERTIFICATE, KEY, TOKEN, TOKEN_KEYS
from trinity.security.scopes import ROLE_SCOPES, Scope
from trinity.security.tokens import issue_token

AUTHORITY_FOLDER = "authority"
AUTHORITY_KEY = "ca.key"
SIGNING_KEY = "token-signing.key"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
STORES = ("nats", "postgres")
"""Parts that serve with a certificate and do not use our tokens."""
PARTS = (*ROLE_SCOPES, *STORES)
AUTHORITY_LIFETIME = timedelta(days=3_650)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of the system that a folder is for; a store has no scopes and gets no token."""

    name: str
    hosts: Sequence[str] = ()
    tenant: str = EVERY_TENANT
    scopes: Sequence[Scope] | None = None


def parts_of(hosts: Mapping[str, Sequence[str]], tenant: str = EVERY_TENANT) -> tuple[Part, ...]:
    """Returns all parts; `tenant` binds the explorer and the trainer, which run its code."""
    bound = ("explorer", "trainer")
    return tuple(
        Part(
            name=name,
            hosts=hosts.get(name, ()),
            tenant=tenant if name in bound else EVERY_TENANT,
            scopes=ROLE_SCOPES.get(name),
        )
        for name in PARTS
    )


class Issuer:
    """An authority in `root/authority`, created at first use and reused afterwards."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = SecretFiles(root / AUTHORITY_FOLDER)
        self._authority = self._found_authority() or self._new_authority()
        if not self.signing_key.exists():
            self._make_signing_key()

    @property
    def signing_key(self) -> Path:
        """The key file that allows its holder to issue tokens."""
        return self._files.folder / SIGNING_KEY

    def issue(self, part: Part, lifetime: timedelta) -> Path:
        """Writes or renews a part's folder and returns it.

        Raises: UserError when the tenant's name is invalid.
        """
        files = SecretFiles(self._root / part.name)
        hosts = (part.name, *LOCAL_HOSTS, *part.hosts)
        pair = make_certificate(self._authority, part.name, hosts, lifetime)
        files.write(AUTHORITY, self._authority.certificate_pem)
        files.write(KEY, pair.key_pem)
        files.write(CERTIFICATE, pair.certificate_pem)
        if part.scopes is not None:
            files.write(TOKEN, self._token(part, lifetime))
            files.write(TOKEN_KEYS, (self._files.folder / TOKEN_KEYS).read_text())
        return files.folder

    def _token(self, part: Part, lifetime: timedelta) -> str:
        scopes = part.scopes or ()
        return issue_token(
            self.signing_key,
            subject=part.name,
            tenant=part.tenant,
            scopes=scopes,
            lifetime=lifetime,
        )

    def _found_authority(self) -> Pair | None:
        key_file = self._files.folder / AUTHORITY_KEY
        if not key_file.exists():
            return None
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
            certificate = x509.load_pem_x509_certificate(
                (self._files.folder / AUTHORITY).read_bytes()
            )
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"cannot read the authority in {self._files.folder}: {error}"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{key_file} holds no key that `trinity certs` has made")
        return Pair(certificate, key)

    def _new_authority(self) -> Pair:
        pair = make_authority(AUTHORITY_LIFETIME)
        self._files.write(AUTHORITY, pair.certificate_pem)
        self._files.write(AUTHORITY_KEY, pair.key_pem)
        return pair

    def _make_signing_key(self) -> None:
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._files.write(TOKEN_KEYS, public.decode())
        self._files.write(SIGNING_KEY, private.decode())
