"""Grants of tenants: the files, addresses and functions that the buffer uses on their behalf."""

import asyncio
import functools
import logging
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import sqlalchemy as sa

from services.buffer.settings import BufferSettings
from trinity.config.plan.experience_sink import ExperienceSink
from trinity.config.plan.task_storage import without_password
from trinity.config.schema.base import Args
from trinity.errors import UserError
from trinity.operators.tasks import BUILT_IN as TASK_OPERATORS
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline
from trinity.plugins import (
    ADOPTED_VARIABLE,
    PLUGIN_DIRS_VARIABLE,
    PLUGINS_ONLY_VARIABLE,
    plugin_dirs_from_environment,
)
from trinity.runtime.logs import LEVEL_VARIABLE
from trinity.runtime.process.box import OPEN_BOX, Box, box_refusal, python_paths
from trinity.runtime.process.child_process import OWN_IDENTITY, Identity
from trinity.runtime.security.authorization import EVERY_TENANT
from trinity.user_code.adopt.manifest import adopted_paths

logger = logging.getLogger(__name__)
HUB = "hub"
DATABASE = "postgresql://"
DATA_JUICER = "data_juicer"
ROOTS_VARIABLE = "TRINITY_BUFFER_TASKSET_ROOTS"
ADDRESSES_VARIABLE = "TRINITY_BUFFER_TASKSET_ADDRESSES"
FUNCTIONS_VARIABLE = "TRINITY_BUFFER_FUNCTION_TENANTS"
NETWORK_VARIABLE = "TRINITY_BUFFER_FUNCTION_NETWORK"
TRUST_VARIABLE = "TRINITY_BUFFER_FUNCTION_TRUST"
OWN = "{tenant}"
ALL_MODULES = "=*"
"""Behind a tenant whose functions may be of any module that Python finds."""
NOTHING = "nothing"
DATABASE_PORT = 5432
HARMLESS_OPTIONS = {"connect_timeout", "sslmode"}
"""Options of a database's address that open no file and lead to no other place."""
_ENTRY = re.compile(r"([A-Za-z0-9._-]+)=(.*)", re.DOTALL)
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
KEPT_VARIABLES = (
    *("HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TEMP", "TMP", "TMPDIR", "TZ", "USER"),
    *("SSL_CERT_DIR", "SSL_CERT_FILE", "VIRTUAL_ENV", PLUGIN_DIRS_VARIABLE, ADOPTED_VARIABLE),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME"),
    *("CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", LEVEL_VARIABLE),
)
KEPT_PREFIXES = ("LC_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTHON")


@dataclass(frozen=True, slots=True)
class TenantEntry:
    """An entry of a setting: a value for one tenant, or for every tenant."""

    tenant: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses `TENANT=VALUE` or `VALUE`; a path or an address has no `=` behind a plain word."""
        match = _ENTRY.fullmatch(text)
        return cls(match[1], match[2]) if match else cls(EVERY_TENANT, text)

    def value_for(self, tenant: str) -> str:
        """Returns the value for a tenant, with its name for `{tenant}`; empty without a value."""
        if self.tenant not in (EVERY_TENANT, tenant):
            return ""
        if OWN not in self.value:
            return self.value
        # A tenant called `..` must not get the directory above.
        return self.value.replace(OWN, tenant) if _FOLDER_NAME.fullmatch(tenant) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantGrants:
    """Grants of one tenant; the error of each check names the refused item."""

    tenant: str
    roots: tuple[str, ...]
    """Directories that its tasksets may be read from."""
    addresses: tuple[str, ...]
    """Databases, datasets of the hub and Data-Juicer servers, as the operator wrote them."""
    has_functions: bool
    """True if its functions may run."""
    has_all_modules: bool = False
    """True if these may be of any module; else a plug-in has to define or register them."""

    def check_database(self, address: str) -> None:
        """Raises UserError if the buffer may not connect to this database for the tenant."""
        if EVERY_TENANT in self.addresses:
            return
        try:
            # The parser of the connection: libpq's own reads some addresses as another host's.
            wanted = sa.make_url(address)
        except (sa.exc.ArgumentError, ValueError) as error:
            raise UserError("the address is not that of a database: correct it") from error
        if extra := sorted(wanted.query.keys() - HARMLESS_OPTIONS):
            raise UserError(
                f"the address of the database holds `{extra[0]}`, which is not allowed for tenant "
                f"{self.tenant}: leave it out"
            )
        if not any(_is_same_database(wanted, entry) for entry in self.addresses):
            raise self._refused(f"the database {without_password(address)}")

    def check_sink(self, sink: ExperienceSink) -> None:
        """Raises UserError if the buffer may not write the tenant's experiences there."""
        if not sink.is_file:
            self.check_database(sink.place)
        elif not (EVERY_TENANT in self.addresses and "/" in self.roots):
            raise UserError(
                f"{sink.shown} is a file of the buffer's machine, where nothing is written for "
                f"tenant {self.tenant}: give the address of a database (`postgresql://`) that "
                f"the operator allows in {ADDRESSES_VARIABLE}, or use `trinity export`"
            )

    def check_dataset(self, name: str) -> None:
        """Raises UserError if the buffer may not fetch this dataset of the hub for the tenant."""
        owner = name.partition("/")[0]
        allowed = {EVERY_TENANT, HUB, f"{HUB}:{owner}", f"{HUB}:{name}"}
        if not allowed.intersection(self.addresses):
            raise self._refused(f"the dataset {name} of the hub")

    def check_data_juicer(self, arguments: Args) -> None:
        """Raises UserError if the buffer may not use this Data-Juicer server for the tenant."""
        if EVERY_TENANT in self.addresses:
            return
        url = str(arguments.get("server_url", ""))
        if not any(_is_same_server(url, entry) for entry in self.addresses):
            raise self._refused(f"the Data-Juicer server {without_password(url)}")
        if arguments.get("config_path") is not None:
            raise UserError(
                "`config_path` is a file that the Data-Juicer server opens for any tenant: give "
                "its operators as a list (`operators`)"
            )

    def check_function(self, title: str) -> None:
        """Raises UserError if functions of the tenant's own may not run in this buffer."""
        if not self.has_functions:
            raise UserError(
                f"{title} is not one of Trinity's, and this buffer runs no functions of tenant "
                f"{self.tenant}: use a built-in one, or have the operator name the tenant in "
                f"{FUNCTIONS_VARIABLE}"
            )

    def _refused(self, what: str) -> UserError:
        return UserError(
            f"{what} is not allowed for tenant {self.tenant}: have the buffer's operator add it to "
            f"{ADDRESSES_VARIABLE}"
        )


def _is_same_database(wanted: sa.URL, entry: str) -> bool:
    """True if host and port are the entry's, and so are the user and the database that it names."""
    if not entry.startswith(DATABASE):
        return False
    allowed = sa.make_url(entry)
    return (
        bool(wanted.host)
        and wanted.drivername == allowed.drivername
        and (wanted.host, wanted.port or DATABASE_PORT)
        == (allowed.host, allowed.port or DATABASE_PORT)
        and allowed.username in (None, wanted.username)
        and (allowed.database or None) in (None, wanted.database)
    )


def _is_same_server(url: str, entry: str) -> bool:
    return entry.startswith(("http://", "https://")) and _plain_url(url) == _plain_url(entry)


def _plain_url(url: str) -> tuple[str, str, str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc.lower(), parts.path.rstrip("/"), parts.query + parts.fragment


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIsolation:
    """The parts of the buffer's surroundings that a process with users' functions shares."""

    is_closed: bool = False
    """True if they are a tenant's: they run in a closed box, or not at all unless they are trusted.
    A user's own run in an open one, where the machine allows that."""
    is_trusted: bool = False
    has_network: bool = True
    variables: tuple[str, ...] = ()
    """Names of variables that it sees in addition to those that every program needs."""
    has_all_modules: bool = True
    """True if a plan may name functions of any module, and not of plug-ins alone."""

    async def identity(self, memory_bytes: int, *writable: str) -> Identity | Box:
        """Returns the way to start it, with the folders that it may write to.

        Raises: UserError where this machine allows no box for a tenant's functions.
        """
        box = self._box(memory_bytes)
        refusal = await asyncio.to_thread(box_refusal, box)
        if not refusal:
            return box._replace(writable=writable)
        if self.is_closed and not self.is_trusted:
            raise UserError(
                f"this machine allows no box around functions of tenants ({refusal}): have the "
                f"operator allow user namespaces, or set {TRUST_VARIABLE}=true if all that name "
                "functions here may have the buffer's rights"
            )
        _warn_of_missing_box(refusal)
        return OWN_IDENTITY

    def _box(self, memory_bytes: int) -> Box:
        if not self.is_closed:
            return OPEN_BOX
        plugins = (os.path.abspath(folder) for folder in plugin_dirs_from_environment())
        return Box(
            has_network=self.has_network,
            memory_bytes=memory_bytes,
            readable=(*python_paths(), *plugins, *adopted_paths()),
        )

    def environment(self, given: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Returns its variables: those on a list of allowed names, so credentials are left out."""
        kept = {*KEPT_VARIABLES, *self.variables}
        rule = {} if self.has_all_modules else {PLUGINS_ONLY_VARIABLE: "1"}
        return {
            name: value
            for name, value in given.items()
            if name in kept or name.startswith(KEPT_PREFIXES)
        } | rule


@functools.cache
def _warn_of_missing_box(refusal: str) -> None:
    logger.warning("users' functions run without a box", extra={"reason": refusal})


SHARES_ALL = WorkerIsolation()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """The rules of a buffer for all tenants.

    policy = TenantPolicy.from_settings(settings, is_secured=True)
    policy.grants("a").check_database("postgresql://10.0.0.7/sums")   # raises UserError
    """

    roots: tuple[TenantEntry, ...]
    addresses: tuple[TenantEntry, ...]
    function_tenants: frozenset[str]
    isolation: WorkerIsolation
    module_tenants: frozenset[str] = frozenset({EVERY_TENANT})
    """Those of them whose functions may be of any module; for others a plug-in has them."""

    @classmethod
    def unrestricted(cls) -> Self:
        """Returns the policy of a buffer on loopback, whose callers are one user."""
        return cls(
            roots=_entries(["/"]),
            addresses=_entries([EVERY_TENANT]),
            function_tenants=frozenset({EVERY_TENANT}),
            isolation=WorkerIsolation(),
        )

    @classmethod
    def from_settings(cls, settings: BufferSettings, *, is_secured: bool) -> Self:
        """Returns the policy; an empty setting grants no access in a secured buffer.

        Nor does it if one of the others is set: functions or a database would circumvent limits
        for files.
        """
        given = (settings.taskset_roots, settings.taskset_addresses, settings.function_tenants)
        default = "" if is_secured or any(given) else EVERY_TENANT
        network = settings.function_network
        functions = _words(settings.function_tenants or (default and f"{default}{ALL_MODULES}"))
        return cls(
            roots=_entries((settings.taskset_roots or (default and "/")).split(":")),
            addresses=_entries(_words(settings.taskset_addresses or default)),
            function_tenants=frozenset(entry.removesuffix(ALL_MODULES) for entry in functions),
            module_tenants=frozenset(
                entry.removesuffix(ALL_MODULES)
                for entry in functions
                if entry.endswith(ALL_MODULES)
            ),
            isolation=WorkerIsolation(
                is_closed=is_secured,
                is_trusted=settings.function_trust,
                has_network=not is_secured if network is None else network,
                variables=tuple(_words(settings.function_variables)),
            ),
        )

    def described(self) -> dict[str, str]:
        """Returns the grants of all tenants, by setting."""
        return {
            ROOTS_VARIABLE: _described(self.roots),
            ADDRESSES_VARIABLE: _described(self.addresses),
            FUNCTIONS_VARIABLE: ", ".join(
                f"{tenant}{ALL_MODULES if self.grants(tenant).has_all_modules else ''}"
                for tenant in sorted(self.function_tenants)
            )
            or NOTHING,
        }

    def grants(self, tenant: str) -> TenantGrants:
        """Returns the grants of a tenant."""
        return TenantGrants(
            tenant=tenant,
            roots=_values(self.roots, tenant),
            addresses=_values(self.addresses, tenant),
            has_functions=bool(self.function_tenants & {EVERY_TENANT, tenant}),
            has_all_modules=bool(self.module_tenants & {EVERY_TENANT, tenant}),
        )

    def isolation_of(self, tenant: str) -> WorkerIsolation:
        """Returns how a process for the functions of a tenant is started."""
        return replace(self.isolation, has_all_modules=self.grants(tenant).has_all_modules)

    def check_pipeline(self, tenant: str, pipeline: ResolvedTaskPipeline) -> None:
        """Checks the operators of a task pipeline, whose plan a client may have written itself.

        Raises: UserError that names the operator.
        """
        grants = self.grants(tenant)
        own = [operator for operator in pipeline.operators if operator.name not in TASK_OPERATORS]
        juicer = [operator for operator in pipeline.operators if operator.name == DATA_JUICER]
        for operator in pipeline.operators:
            if operator.is_own != (operator.name not in TASK_OPERATORS):
                raise UserError(f"the plan says wrongly whose task operator {operator.name} is")
        for operator in own:
            grants.check_function(f"task operator {operator.name}")
        for operator in juicer:
            grants.check_data_juicer(operator.args)
        if own and juicer and not self.isolation.has_network:
            raise UserError(
                f"task operator {own[0].name} runs without a network, and Data-Juicer needs one: "
                f"put them into two runs, or have the operator set {NETWORK_VARIABLE}"
            )


def _entries(texts: Iterable[str]) -> tuple[TenantEntry, ...]:
    return tuple(TenantEntry.parse(text) for text in texts if text)


def _values(entries: Sequence[TenantEntry], tenant: str) -> tuple[str, ...]:
    return tuple(value for entry in entries if (value := entry.value_for(tenant)))


def _described(entries: Sequence[TenantEntry]) -> str:
    return ", ".join(f"{own.tenant}={without_password(own.value)}" for own in entries) or NOTHING


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()
