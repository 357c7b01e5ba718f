"""An explorer and a trainer run one tenant's code, and so hold the token of one tenant."""

from datetime import timedelta
from pathlib import Path

import pytest

from trinity.errors import UserError
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole, parts_of
from trinity.runtime.security.credentials import PLAINTEXT, Credentials
from trinity.runtime.security.worker_tenant import worker_tenant

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> CredentialIssuer:
    return CredentialIssuer(tmp_path_factory.mktemp("certs"))


def credentials(issuer: CredentialIssuer, tenant: str) -> Credentials:
    name = f"explorer-{tenant.replace('*', 'all')}"
    return Credentials(issuer.issue(CredentialRole(name=name, tenant=tenant, scopes=[]), HOUR))


@pytest.mark.parametrize("service", ["explorer", "trainer"])
def test_a_token_for_all_tenants_is_refused_unless_the_operator_says_otherwise(
    issuer: CredentialIssuer, service: str
) -> None:
    held = credentials(issuer, "*")
    for tenant in ("", "a"):
        with pytest.raises(UserError, match=f"TRINITY_{service.upper()}_ALL_TENANTS=true"):
            worker_tenant(service, tenant, held, serves_all=False)
        assert worker_tenant(service, tenant, held, serves_all=True) == tenant


def test_the_tenant_is_that_of_the_token(issuer: CredentialIssuer) -> None:
    held = credentials(issuer, "a")
    assert worker_tenant("explorer", "", held, serves_all=False) == "a"
    assert worker_tenant("explorer", "a", held, serves_all=False) == "a"
    with pytest.raises(UserError, match="is for tenant a, and TRINITY_EXPLORER_TENANT is b"):
        worker_tenant("explorer", "b", held, serves_all=False)


def test_without_tokens_the_settings_decide() -> None:
    assert worker_tenant("trainer", "", PLAINTEXT, serves_all=False) == ""
    assert worker_tenant("trainer", "a", PLAINTEXT, serves_all=False) == "a"


def test_what_is_no_token_is_named(issuer: CredentialIssuer) -> None:
    held = credentials(issuer, "broken")
    assert held.folder is not None
    (held.folder / "token").write_text("no token")
    with pytest.raises(UserError, match="token holds no token"):
        worker_tenant("trainer", "", held, serves_all=False)


def test_certificates_are_made_for_one_tenants_code_by_default() -> None:
    tenants = {part.name: part.tenant for part in parts_of({})}
    assert tenants["explorer"] == tenants["trainer"] == "default"
    assert tenants["operator"] == tenants["buffer"] == "*"


def test_the_credentials_folder_is_named_in_a_refusal(issuer: CredentialIssuer) -> None:
    held = credentials(issuer, "*")
    assert held.folder is not None
    with pytest.raises(UserError, match=str(Path(held.folder) / "token")):
        worker_tenant("trainer", "", held, serves_all=False)
