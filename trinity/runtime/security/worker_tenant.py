"""Chooses the tenant of an explorer or a trainer, which run that tenant's own code."""

from trinity.errors import UserError
from trinity.runtime.security.authorization import EVERY_TENANT
from trinity.runtime.security.credentials import TOKEN, Credentials


def worker_tenant(service: str, tenant: str, security: Credentials, *, serves_all: bool) -> str:
    """Returns the tenant that the service works for: that of its token; empty for all tenants.

    `tenant` is the one in its settings, and `serves_all` the operator's word that code of all
    tenants may run in one process, which can read the token.

    Raises: UserError when the token is for all tenants without that word, or for another tenant.
    """
    if not security.is_on:
        return tenant
    prefix = f"TRINITY_{service.upper()}"
    token_tenant = _tenant_of(security)
    if token_tenant == EVERY_TENANT and not serves_all:
        raise UserError(
            f"the token in {security.file(TOKEN)} is for all tenants, and the {service} runs "
            "tenants' own code, which can read it: give it the token of one tenant (`trinity certs "
            f"--tenant NAME`), or set {prefix}_ALL_TENANTS=true if all tenants trust one another"
        )
    if token_tenant != EVERY_TENANT and tenant not in ("", token_tenant):
        raise UserError(
            f"the token in {security.file(TOKEN)} is for tenant {token_tenant}, and "
            f"{prefix}_TENANT is {tenant}: give the token of that tenant, or leave the variable out"
        )
    return tenant if token_tenant == EVERY_TENANT else token_tenant


def _tenant_of(security: Credentials) -> str:
    """Returns the tenant in the own token, whose signature the services that it calls check."""
    import jwt  # takes a tenth of a second

    path = security.file(TOKEN)
    try:
        claims = jwt.decode(path.read_text().strip(), options={"verify_signature": False})
    except (OSError, ValueError, jwt.InvalidTokenError) as error:
        raise UserError(f"{path} holds no token: `trinity token` issues one") from error
    return str(claims.get("tenant", EVERY_TENANT))
