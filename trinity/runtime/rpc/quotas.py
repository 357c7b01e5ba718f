"""Quotas: the most of one thing that each tenant may have in a service, from one setting."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Self

from pydantic import AfterValidator

from trinity.errors import QuotaExceeded
from trinity.runtime.security.authorization import EVERY_TENANT

UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
MOST = 2**62
"""Larger than any quota in use, and small enough for the database."""
REFUSED = "quota: "
"""The beginning of every refusal, also where it is told as the reason of something else."""
_ENTRY = re.compile(r"(?:([^=,\s]+)=)?([0-9]{1,19})(|[KMGT]iB)", re.ASCII)


def parse_limits(text: str) -> Mapping[str, int]:
    """Parses `LIMIT` for every tenant and `TENANT=LIMIT` for one, separated by commas or spaces.

    Raises: ValueError that names the entry.
    """
    limits: dict[str, int] = {}
    for entry in text.replace(",", " ").split():
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ValueError(
                f"{entry[:60]!r} is not a limit: write `100` or `4GiB`, and `name=100` for one "
                "tenant"
            )
        limits[match[1] or ""] = min(int(match[2]) * UNITS[match[3]], MOST)
    if "" not in limits:
        raise ValueError("no limit for tenants that are not named: write one without a name")
    return limits


def _checked(text: str) -> str:
    parse_limits(text)
    return text


QuotaText = Annotated[str, AfterValidator(_checked)]
"""A setting that `TenantQuota` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """The limits of each tenant for one thing.

    quota = TenantQuota.parse("100, a=500", what="members", variable="TRINITY_..._MEMBERS")
    quota.limit_of("a")                 # 500
    quota.check("b", used=100, more=1)  # raises QuotaExceeded

    Callers for all tenants, as every caller on loopback, have no limit unless `*=LIMIT` gives one.
    """

    what: str
    """The thing in the plural, as in `4 members`."""
    variable: str
    """The setting that an operator changes."""
    limits: Mapping[str, int]
    remedy: str = "end some"

    @classmethod
    def parse(cls, text: str, *, what: str, variable: str, remedy: str = "end some") -> Self:
        """Reads the setting; raises ValueError as `parse_limits` does."""
        return cls(what=what, variable=variable, limits=parse_limits(text), remedy=remedy)

    def limit_of(self, tenant: str) -> int | None:
        """Returns the limit of a tenant; None without one."""
        if tenant in ("", EVERY_TENANT):
            return self.limits.get(EVERY_TENANT)
        return self.limits.get(tenant, self.limits[""])

    def check(self, tenant: str, *, used: int, more: int) -> None:
        """Checks that a tenant that has `used` may have `more` in addition.

        Raises: QuotaExceeded that names the quota, its use, its limit and its setting.
        """
        limit = self.limit_of(tenant)
        if limit is None or used + more <= limit:
            return
        raise QuotaExceeded(
            f"{REFUSED}tenant {tenant or EVERY_TENANT} has {used:,} {self.what}, and {more:,} more "
            f"would exceed its limit of {limit:,}: {self.remedy}, or have the operator raise "
            f"{self.variable}"
        )


@dataclass(slots=True)
class QuotaUse:
    """The part of a quota that each tenant has in use at this moment, in this process.

    with use.hold(tenant):
        ...
    """

    quota: TenantQuota
    _used: Counter[str] = field(default_factory=Counter)

    def take(self, tenant: str, more: int = 1) -> None:
        """Takes some, to be given back; raises QuotaExceeded if not enough is left."""
        self.quota.check(tenant, used=self._used[tenant], more=more)
        self._used[tenant] += more

    def give_back(self, tenant: str, num: int = 1) -> None:
        """Gives back used quota."""
        self._used[tenant] -= num
        if self._used[tenant] <= 0:
            del self._used[tenant]

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Takes one while the block runs; raises as `take` does."""
        self.take(tenant)
        try:
            yield
        finally:
            self.give_back(tenant)
