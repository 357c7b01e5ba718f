"""What a tenant may have the buffer open and run is what the operator allows, and no more."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from services.buffer.settings import BufferSettings
from services.buffer.tenants import TenantPolicy, WorkerIsolation
from trinity.errors import UserError
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline, TaskOperator

SUMS = "postgresql://reader@10.0.0.7:5433/sums"


def policy(*, is_secured: bool = True, **given: str) -> TenantPolicy:
    settings = BufferSettings(postgres_dsn="unused", nats_url="unused", **given)  # type: ignore[arg-type]
    return TenantPolicy.from_settings(settings, is_secured=is_secured)


def is_allowed_database(allowed: str, address: str, tenant: str = "a") -> bool:
    try:
        policy(taskset_addresses=allowed).grants(tenant).check_database(address)
    except UserError:
        return False
    return True


def test_without_tokens_everything_is_as_one_user_has_it() -> None:
    grants = policy(is_secured=False).grants("default")
    assert grants.roots == ("/",)
    assert grants.has_functions
    grants.check_database("postgresql://anywhere:1/x?service=mine&host=elsewhere")
    grants.check_dataset("owner/name")
    grants.check_data_juicer({"server_url": "http://127.0.0.1:8005", "config_path": "/a.yaml"})
    assert policy(is_secured=False).isolation.has_network


@pytest.mark.parametrize(
    "given",
    [
        {"taskset_roots": "/data"},
        {"taskset_addresses": "hub"},
        {"function_tenants": "a"},
    ],
)
def test_who_limits_one_thing_grants_nothing_else(given: dict[str, str]) -> None:
    rules = policy(is_secured=False, **given)
    granted = [name for name, value in rules.described().items() if value != "nothing"]
    assert granted == [f"TRINITY_BUFFER_{name.upper()}" for name in given]
    grants = rules.grants("a")
    assert bool(grants.roots) == ("taskset_roots" in given)
    assert grants.has_functions == ("function_tenants" in given)
    assert not grants.has_all_modules
    if "taskset_addresses" not in given:
        with pytest.raises(UserError, match="TASKSET_ADDRESSES"):
            grants.check_dataset("owner/name")


def test_what_is_granted_is_told_without_passwords() -> None:
    told = policy(
        taskset_roots="/shared:a=/home/a",
        taskset_addresses="a=postgresql://me:secret@10.0.0.7/sums",
        function_tenants="a,b=*",
    ).described()
    assert list(told.values()) == [
        "*=/shared, a=/home/a",
        "a=postgresql://me:***@10.0.0.7/sums",
        "a, b=*",
    ]
    assert list(policy(is_secured=False).described().values()) == ["*=/", "*=*", "*=*"]


def test_a_secured_buffer_gives_a_tenant_nothing_by_itself() -> None:
    grants = policy().grants("a")
    assert grants.roots == ()
    checks: list[Callable[[], None]] = [
        lambda: grants.check_database(SUMS),
        lambda: grants.check_dataset("owner/name"),
        lambda: grants.check_data_juicer({"server_url": "http://127.0.0.1:8005"}),
        lambda: grants.check_function("advantage_fn mine.own"),
    ]
    for check in checks:
        with pytest.raises(UserError, match="tenant a"):
            check()
    assert not policy().isolation.has_network


def test_directories_are_for_all_for_one_or_for_each_tenant() -> None:
    rules = policy(taskset_roots="/shared:/home/{tenant}/data:b=/only/b")
    assert rules.grants("a").roots == ("/shared", "/home/a/data")
    assert rules.grants("b").roots == ("/shared", "/home/b/data", "/only/b")
    assert policy(taskset_roots="/has=a/sign").grants("a").roots == ("/has=a/sign",)


@pytest.mark.parametrize("name", ["..", ".", ""])
def test_a_tenants_name_leads_to_no_other_directory(name: str) -> None:
    assert policy(taskset_roots="/home/{tenant}").grants(name).roots == ()


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        (SUMS, True),
        ("postgresql://reader:secret@10.0.0.7:5433/sums?sslmode=verify-full", True),
        ("postgresql://reader@10.0.0.7:5432/sums", False),
        ("postgresql://reader@10.0.0.7/sums", False),
        ("postgresql://reader@10.0.0.8:5433/sums", False),
        ("postgresql://other@10.0.0.7:5433/sums", False),
        ("postgresql://10.0.0.7:5433/sums", False),
        ("postgresql://reader@10.0.0.7:5433/others", False),
        ("postgresql:///sums", False),
        # Places that the options or the parsers of an address lead to.
        (f"{SUMS}?host=127.0.0.1", False),
        (f"{SUMS}?hostaddr=127.0.0.1", False),
        (f"{SUMS}?port=22", False),
        (f"{SUMS}?dbname=others", False),
        (f"{SUMS}?service=mine", False),
        (f"{SUMS}?passfile=/home/b/.pgpass", False),
        (f"{SUMS}?sslkey=/home/b/tls.key", False),
        ("postgresql://reader@10.0.0.7:5433,127.0.0.1:22/sums", False),
        ("postgresql://reader@10.0.0.7,127.0.0.1:5433/sums", False),
        ("postgresql://reader:5433/sums@127.0.0.1:22/sums", False),
        ("postgresql://10.0.0.7:5433/sums@127.0.0.1:22/sums", False),
        ("postgresql://reader@10.0.0.7:5433/sums@127.0.0.1", False),
        ("not an address", False),
        ("mysql://reader@10.0.0.7:5433/sums", False),
    ],
)
def test_a_database_is_the_allowed_one_in_every_part(address: str, is_allowed: bool) -> None:
    assert is_allowed_database(SUMS, address) is is_allowed


def test_a_database_is_allowed_to_the_tenant_that_is_named() -> None:
    assert is_allowed_database(f"b={SUMS}", SUMS, tenant="b")
    assert not is_allowed_database(f"b={SUMS}", SUMS, tenant="a")
    assert is_allowed_database("a=*", SUMS)
    assert is_allowed_database("postgresql://10.0.0.7:5433", SUMS)
    assert is_allowed_database("postgresql://10.0.0.7", "postgresql://x@10.0.0.7/y")


@pytest.mark.parametrize("allowed", ["*", "hub", "hub:owner", "hub:owner/name"])
def test_datasets_of_the_hub_are_allowed_by_all_owner_or_name(allowed: str) -> None:
    policy(taskset_addresses=allowed).grants("a").check_dataset("owner/name")
    for other in ("hub:owner2", "hub:owner/other", "hub:own", SUMS):
        with pytest.raises(UserError, match="dataset owner/name"):
            policy(taskset_addresses=other).grants("a").check_dataset("owner/name")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8006",
        "https://127.0.0.1:8005",
        "http://127.0.0.1:8005/admin",
        "http://127.0.0.1:8005@127.0.0.1:22",
        "http://127.0.0.1:8005#@127.0.0.1:22",
    ],
)
def test_a_data_juicer_server_is_the_allowed_one(url: str) -> None:
    grants = policy(taskset_addresses="http://127.0.0.1:8005").grants("a")
    grants.check_data_juicer({"server_url": "http://127.0.0.1:8005/", "operators": []})
    with pytest.raises(UserError, match="Data-Juicer server"):
        grants.check_data_juicer({"server_url": url})


def test_a_file_that_a_data_juicer_server_would_open_is_refused() -> None:
    grants = policy(taskset_addresses="http://127.0.0.1:8005").grants("a")
    with pytest.raises(UserError, match="config_path"):
        grants.check_data_juicer({"server_url": "http://127.0.0.1:8005", "config_path": "/b.yaml"})


def pipeline(*operators: tuple[str, bool]) -> ResolvedTaskPipeline:
    url = {"server_url": "http://127.0.0.1:8005"}
    return ResolvedTaskPipeline(
        operators=tuple(
            TaskOperator(name=name, args=dict(url) if name == "data_juicer" else {}, is_own=is_own)
            for name, is_own in operators
        )
    )


def test_task_operators_of_its_own_run_for_a_tenant_that_the_operator_names() -> None:
    rules = policy(function_tenants="a,c")
    own = pipeline(("mine.own", True))
    rules.check_pipeline("a", own)
    with pytest.raises(UserError, match=r"task operator mine\.own .* tenant b"):
        rules.check_pipeline("b", own)
    rules.check_pipeline("b", pipeline(("length_filter", False)))


def test_a_plan_cannot_call_a_function_ours_that_is_not() -> None:
    for name, is_own in (("os.system", False), ("length_filter", True)):
        with pytest.raises(UserError, match="says wrongly whose"):
            policy(is_secured=False).check_pipeline("a", pipeline((name, is_own)))


def test_own_task_operators_get_no_network_through_data_juicer() -> None:
    mixed = pipeline(("mine.own", True), ("data_juicer", False))
    offline = policy(function_tenants="a", taskset_addresses="http://127.0.0.1:8005")
    with pytest.raises(UserError, match="runs without a network"):
        offline.check_pipeline("a", mixed)
    replace(offline, isolation=WorkerIsolation()).check_pipeline("a", mixed)


def test_the_environment_of_functions_holds_what_programs_need_and_what_is_named() -> None:
    given = {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "OMP_NUM_THREADS": "1",
        "TRINITY_PLUGIN_DIRS": "/p",
        "TRINITY_BUFFER_POSTGRES_DSN": "secret",
        "TRINITY_SECURITY_DIR": "/certs",
        "HF_TOKEN": "secret",
        "PGPASSWORD": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "MINE": "1",
    }
    seen = policy(is_secured=False).isolation.environment(given)
    assert set(seen) == {"PATH", "PYTHONPATH", "OMP_NUM_THREADS", "TRINITY_PLUGIN_DIRS"}
    named = policy(function_variables="MINE, PGUSER").isolation.environment(given)
    assert set(named) == {*seen, "MINE"}
