"""A token is taken when its signature, audience, claims and end are right, and not otherwise."""

import base64
import json
import time
from datetime import timedelta
from pathlib import Path

import jwt
import pytest
from typer.testing import CliRunner

from trinity.cli.main import make_app
from trinity.errors import Unauthenticated, UserError
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.tokens import TokenKeys, issue_token

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> CredentialIssuer:
    return CredentialIssuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture
def keys(issuer: CredentialIssuer) -> TokenKeys:
    return TokenKeys(issuer.signing_key.with_name("token-keys.pem"))


def issued(issuer: CredentialIssuer, lifetime: timedelta = HOUR, tenant: str = "a") -> str:
    return issue_token(
        issuer.signing_key,
        subject="alice",
        tenant=tenant,
        scopes=[Scope.READ, Scope.STEER],
        lifetime=lifetime,
    )


def test_a_token_says_who_calls(issuer: CredentialIssuer, keys: TokenKeys) -> None:
    caller = keys.caller_of(issued(issuer))
    assert (caller.subject, caller.tenant) == ("alice", "a")
    assert caller.scopes == {Scope.READ, Scope.STEER}
    assert caller.bound_tenant == "a"
    assert keys.caller_of(issued(issuer, tenant="*")).bound_tenant == ""


def test_an_expired_token_is_called_expired(issuer: CredentialIssuer, keys: TokenKeys) -> None:
    with pytest.raises(Unauthenticated, match="expired"):
        keys.caller_of(issued(issuer, lifetime=timedelta(seconds=-1)))


def test_a_token_that_was_good_expires(
    issuer: CredentialIssuer, keys: TokenKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = issued(issuer)
    keys.caller_of(token)
    later = time.time() + HOUR.total_seconds() + 1
    monkeypatch.setattr("trinity.runtime.security.tokens.time.time", lambda: later)
    with pytest.raises(Unauthenticated, match="expired"):
        keys.caller_of(token)


def unsigned(claims: dict[str, object]) -> str:
    parts = [{"alg": "none", "typ": "JWT"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in parts]
    return b".".join([*encoded, b""]).decode()


def claims_of(token: str) -> dict[str, object]:
    return dict(jwt.decode(token, options={"verify_signature": False}))


@pytest.mark.parametrize("kind", ["none", "hmac", "tampered", "stranger", "text", "empty", "long"])
def test_a_forged_token_is_refused(
    kind: str, issuer: CredentialIssuer, keys: TokenKeys, tmp_path: Path
) -> None:
    good = issued(issuer)
    claims = claims_of(good) | {"tenant": "*"}
    header, _, signature = good.split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    secret = base64.b64encode(issuer.signing_key.with_name("token-keys.pem").read_bytes())
    forged = {
        "none": unsigned(claims),
        "hmac": jwt.encode(claims, secret, algorithm="HS256"),
        "tampered": f"{header}.{body}.{signature}",
        "stranger": issued(CredentialIssuer(tmp_path / "stranger")),
        "text": "let me in",
        "empty": "",
        "long": "x" * 5_000,
    }[kind]
    with pytest.raises(Unauthenticated) as refusal:
        keys.caller_of(forged)
    assert not forged or forged not in str(refusal.value)


@pytest.mark.parametrize("claim", ["aud", "exp", "scope", "sub", "tenant"])
def test_a_token_without_one_of_its_claims_is_refused(
    claim: str, issuer: CredentialIssuer, keys: TokenKeys
) -> None:
    claims = claims_of(issued(issuer))
    del claims[claim]
    token = jwt.encode(claims, issuer.signing_key.read_bytes(), algorithm="EdDSA")
    with pytest.raises(Unauthenticated):
        keys.caller_of(token)


def of_a_clock_ahead(issuer: CredentialIssuer, claim: str, seconds: int) -> str:
    claims = claims_of(issued(issuer)) | {claim: int(time.time()) + seconds}
    return jwt.encode(claims, issuer.signing_key.read_bytes(), algorithm="EdDSA")


@pytest.mark.parametrize("claim", ["iat", "nbf"])
def test_the_clock_of_the_issuer_may_be_a_little_ahead(
    claim: str, issuer: CredentialIssuer, keys: TokenKeys
) -> None:
    assert keys.caller_of(of_a_clock_ahead(issuer, claim, 30)).subject == "alice"
    with pytest.raises(Unauthenticated, match="not valid yet"):
        keys.caller_of(of_a_clock_ahead(issuer, claim, 600))


@pytest.mark.parametrize(
    "changed",
    [{"aud": "other"}, {"tenant": "a.b"}, {"tenant": 3}, {"scope": ["read"]}, {"exp": "soon"}],
)
def test_a_token_with_an_odd_claim_is_refused(
    changed: dict[str, object], issuer: CredentialIssuer, keys: TokenKeys
) -> None:
    claims = claims_of(issued(issuer)) | changed
    token = jwt.encode(claims, issuer.signing_key.read_bytes(), algorithm="EdDSA")
    with pytest.raises(Unauthenticated):
        keys.caller_of(token)


def test_an_unknown_scope_gives_nothing(issuer: CredentialIssuer, keys: TokenKeys) -> None:
    claims = claims_of(issued(issuer)) | {"scope": "read root"}
    token = jwt.encode(claims, issuer.signing_key.read_bytes(), algorithm="EdDSA")
    assert keys.caller_of(token).scopes == {Scope.READ}


def test_while_a_key_is_replaced_both_are_good_and_afterwards_one(tmp_path: Path) -> None:
    old, new = CredentialIssuer(tmp_path / "old"), CredentialIssuer(tmp_path / "new")
    pem = {one: one.signing_key.with_name("token-keys.pem").read_text() for one in (old, new)}
    path = tmp_path / "keys.pem"
    path.write_text(pem[old] + pem[new])
    keys = TokenKeys(path)
    tokens = [issued(old), issued(new)]
    assert [keys.caller_of(token).subject for token in tokens] == ["alice", "alice"]
    (tmp_path / "next.pem").write_text(pem[new])
    (tmp_path / "next.pem").replace(path)
    assert keys.caller_of(tokens[1]).subject == "alice"
    with pytest.raises(Unauthenticated, match="not signed with a key"):
        keys.caller_of(tokens[0])


@pytest.mark.parametrize("tenant", ["", "a.b", "a/b", "a>", "**", "a b"])
def test_a_token_is_not_issued_for_what_is_no_tenant(tenant: str, issuer: CredentialIssuer) -> None:
    with pytest.raises(UserError, match="tenant"):
        issued(issuer, tenant=tenant)


def test_a_file_without_keys_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.pem"
    with pytest.raises(UserError, match="public keys"):
        TokenKeys(path)
    path.write_text("nothing")
    with pytest.raises(UserError, match="public keys"):
        TokenKeys(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666, 0o777])
@pytest.mark.parametrize("name", ["token-signing.key", "ca.key"])
def test_a_key_that_other_users_may_read_signs_nothing(
    tmp_path: Path, name: str, mode: int
) -> None:
    issuer = CredentialIssuer(tmp_path)
    key = issuer.signing_key.with_name(name)
    key.chmod(mode)
    with pytest.raises(UserError, match=rf"other users may read .*{name} .*chmod 600"):
        issued(CredentialIssuer(tmp_path))
    for allowed in (0o600, 0o400):
        key.chmod(allowed)
        assert issued(CredentialIssuer(tmp_path))


def test_a_token_lasts_a_year_at_most_unless_forced(issuer: CredentialIssuer) -> None:
    year = timedelta(days=365)
    assert issued(issuer, lifetime=year)
    with pytest.raises(UserError, match="365 days and renew it, or add `--force`"):
        issued(issuer, lifetime=year + timedelta(seconds=1))
    long = issue_token(
        issuer.signing_key,
        subject="alice",
        tenant="a",
        scopes=[Scope.READ],
        lifetime=3 * year,
        force=True,
    )
    assert float(str(claims_of(long)["exp"])) > time.time() + 2 * year.total_seconds()


def test_a_part_whose_token_would_last_too_long_keeps_what_it_has(tmp_path: Path) -> None:
    issuer = CredentialIssuer(tmp_path)
    part = CredentialRole(name="operator", scopes=[Scope.READ])
    folder = issuer.issue(part, HOUR)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="would last 400 days"):
        issuer.issue(part, timedelta(days=400))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    issuer.issue(part, timedelta(days=400), force=True)


@pytest.mark.parametrize("hours", ["nan", "inf", "1e300"])
def test_hours_that_are_no_time_are_refused(issuer: CredentialIssuer, hours: str) -> None:
    words = ["token", "--signing-key", str(issuer.signing_key), "--subject", "a", "--tenant", "a"]
    words += ["--scope", "read", "--hours", hours, "--force"]
    result = CliRunner().invoke(make_app(["token"]), words)
    assert isinstance(result.exception, UserError | SystemExit)
    assert "--hours" in f"{result.exception}{result.output}"
