"""Issues credentials: a development authority, certificates, and tokens for every role."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trinity.errors import UserError
from trinity.runtime.security.authorization import EVERY_TENANT, ROLE_SCOPES, Scope
from trinity.runtime.security.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    TOKEN,
    TOKEN_KEYS,
    Credentials,
)
from trinity.runtime.security.secret_files import SecretFiles, read_private
from trinity.runtime.security.tokens import issue_token
from trinity.runtime.telemetry import names

_CLOCK_SKEW = timedelta(minutes=5)
_AUTHORITY_NAME = "trinity development authority"
AUTHORITY_FOLDER = "authority"
AUTHORITY_KEY = "ca.key"
SIGNING_KEY = "token-signing.key"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
STORES = ("nats", "postgres")
"""Parts that serve with a certificate and do not use our tokens."""
DEFAULT_TENANT = "default"
"""The tenant of an experiment that does not name one."""
TENANT_CODE_ROLES = ("explorer", "trainer")
"""Parts that run a tenant's own code, and so get the token of one tenant."""
PARTS = (*ROLE_SCOPES, *STORES)
AUTHORITY_LIFETIME = timedelta(days=3_650)


@dataclass(frozen=True, slots=True)
class CertificateKeyPair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()


def make_authority(lifetime: timedelta) -> CertificateKeyPair:
    """Creates a self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(_AUTHORITY_NAME)
    usage = _key_usage(signs_certificates=True)
    builder = (
        _builder(name, name, key.public_key(), lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return CertificateKeyPair(builder.sign(key, hashes.SHA256()), key)


def make_certificate(
    authority: CertificateKeyPair, common_name: str, hosts: Sequence[str], lifetime: timedelta
) -> CertificateKeyPair:
    """Creates a certificate for a process that serves under `hosts` and calls others."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    signer = authority.key.public_key()
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(common_name), issuer, key.public_key(), lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )
    return CertificateKeyPair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRole:
    """The part of the system that a folder is for; a store has no scopes and gets no token."""

    name: str
    hosts: Sequence[str] = ()
    tenant: str = EVERY_TENANT
    scopes: Sequence[Scope] | None = None


def parts_of(
    hosts: Mapping[str, Sequence[str]], tenant: str = DEFAULT_TENANT
) -> tuple[CredentialRole, ...]:
    """Returns all parts; `tenant` binds the explorer and the trainer, which run its code."""
    return tuple(
        CredentialRole(
            name=name,
            hosts=hosts.get(name, ()),
            tenant=tenant if name in TENANT_CODE_ROLES else EVERY_TENANT,
            scopes=ROLE_SCOPES.get(name),
        )
        for name in PARTS
    )


def expiry_times(security: Credentials) -> Iterator[tuple[float, dict[str, str]]]:
    """Yields when a folder's credentials expire, in seconds since 1970, of several the first."""
    for name, what in ((CERTIFICATE, "certificate"), (AUTHORITY, "authority")):
        found = x509.load_pem_x509_certificates(security.file(name).read_bytes())
        first = min(certificate.not_valid_after_utc for certificate in found)
        yield first.timestamp(), {names.CREDENTIAL: what}
    if security.folder is not None and (security.folder / TOKEN).is_file():
        token = (security.folder / TOKEN).read_text().strip()
        claims = jwt.decode(token, options={"verify_signature": False})
        yield float(claims["exp"]), {names.CREDENTIAL: "token"}


class CredentialIssuer:
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

    def issue(self, part: CredentialRole, lifetime: timedelta, *, force: bool = False) -> Path:
        """Writes or renews a part's folder and returns it; `force` is as for `issue_token`.

        Raises: UserError when the tenant's name is invalid, or its token would last too long.
        """
        token = None if part.scopes is None else self._token(part, lifetime, force)
        files = SecretFiles(self._root / part.name)
        hosts = (part.name, *LOCAL_HOSTS, *part.hosts)
        pair = make_certificate(self._authority, part.name, hosts, lifetime)
        files.write_secret(AUTHORITY, self._authority.certificate_pem)
        files.write_secret(KEY, pair.key_pem)
        files.write_secret(CERTIFICATE, pair.certificate_pem)
        if token is not None:
            files.write_secret(TOKEN, token)
            files.write_secret(TOKEN_KEYS, (self._files.folder / TOKEN_KEYS).read_text())
        return files.folder

    def _token(self, part: CredentialRole, lifetime: timedelta, force: bool) -> str:
        scopes = part.scopes or ()
        return issue_token(
            self.signing_key,
            subject=part.name,
            tenant=part.tenant,
            scopes=scopes,
            lifetime=lifetime,
            force=force,
        )

    def _found_authority(self) -> CertificateKeyPair | None:
        key_file = self._files.folder / AUTHORITY_KEY
        if not key_file.exists():
            return None
        try:
            key = serialization.load_pem_private_key(read_private(key_file), password=None)
            certificate = x509.load_pem_x509_certificate(
                (self._files.folder / AUTHORITY).read_bytes()
            )
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"cannot read the authority in {self._files.folder}: {error}"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UserError(f"{key_file} holds no key that `trinity certs` has made")
        return CertificateKeyPair(certificate, key)

    def _new_authority(self) -> CertificateKeyPair:
        pair = make_authority(AUTHORITY_LIFETIME)
        self._files.write_secret(AUTHORITY, pair.certificate_pem)
        self._files.write_secret(AUTHORITY_KEY, pair.key_pem)
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
        self._files.write_secret(TOKEN_KEYS, public.decode())
        self._files.write_secret(SIGNING_KEY, private.decode())
