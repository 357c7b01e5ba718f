"""Says in which tests programs are forked from a process that has imported them.

What is measured, the tests of the supervisor and of what users' machines do, tests on imports and
on the interpreter, and the runs that others are compared with start each program itself.
"""

import fnmatch
from collections.abc import Iterator

import pytest

from services.explorer.engine.vllm_options import detect_hardware
from tests.support.forking.programs import (
    MODEL_FREE,
    SCHEMAS,
    STACKS,
    TRAINER,
    WITH_MODELS,
)
from tests.support.forking.starts import forked_programs

Forked = tuple[tuple[str, ...], tuple[str, ...]]
"""What is imported, and the programs that are forked where a test starts them."""
STARTED: Forked = ((), ())
"""Each program is started itself."""
FORKED: tuple[tuple[Forked, tuple[str, ...]], ...] = (
    (
        STARTED,
        (
            "*/chaos/test_severed_calls.py",
            "*/integration/buffer/test_benchmark.py",
            "*/integration/buffer/test_process.py",
        ),
    ),
    (
        (WITH_MODELS, STACKS),
        (
            "*/e2e/test_adapter.py",
            "*/e2e/test_at_the_terminal.py",
            "*/e2e/test_killed_services.py",
            "*/e2e/test_parts_of_trinity_rft.py",
            "*/e2e/test_results.py",
            "*/e2e/test_retrain.py",
            "*/e2e/test_transfers.py",
            "*/e2e/test_verl_rows.py",
        ),
    ),
    ((SCHEMAS, SCHEMAS[:1]), ("*/integration/explorer/test_schemas.py",)),
    (
        (TRAINER, STACKS),
        (
            "*/integration/trainer/test_hosts_train.py",
            "*/integration/trainer/test_ranks_publish.py",
            "*/integration/trainer/test_service_begins.py",
            "*/integration/trainer/test_two_ranks.py",
        ),
    ),
    (
        (MODEL_FREE, STACKS),
        (
            "*/chaos/test_*.py",
            "*/e2e/model_free/test_*.py",
            "*/integration/buffer/test_*.py",
            "*/integration/cli/test_*.py",
            "*/integration/deploy/test_commands.py",
            "*/integration/deploy/test_source_run.py",
            "*/integration/hostile/test_*.py",
            "*/integration/inspect/test_commands.py",
            "*/integration/inspect/test_live_stage.py",
            "*/integration/monitors/test_launched.py",
            "*/integration/restarts/test_each_service.py",
            "*/integration/restarts/test_half_made_database.py",
            "*/integration/restarts/test_half_made_run.py",
            "*/integration/restarts/test_half_made_schemas.py",
            "*/integration/restarts/test_schemas.py",
            "*/integration/security/test_callers.py",
            "*/integration/security/test_listening.py",
            "*/integration/security/test_speaking.py",
            "*/integration/security/test_studio.py",
            "*/integration/stalls/test_endings.py",
            "*/integration/stalls/test_launched.py",
            "*/integration/stalls/test_recovery.py",
            "*/integration/studio/test_giving_way.py",
            "*/integration/synchronizer/test_process.py",
            "*/integration/telemetry/test_whole_chain.py",
            "*/integration/together/test_*.py",
            "*/integration/trainer/test_supervision.py",
        ),
    ),
)
"""Forked programs by test files, the first that fits; in others each program is started."""


def forked_in(path: str) -> Forked:
    """Returns what is imported and forked for a test."""
    for forked, patterns in FORKED:
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            return forked
    return STARTED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Around a test and its fixtures."""
    modules, programs = forked_in(item.path.as_posix())
    if not modules or (modules is WITH_MODELS and detect_hardware().has_gpu):
        return (yield)
    with forked_programs(modules, programs):
        return (yield)
