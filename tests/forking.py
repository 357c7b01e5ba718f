"""Says in which tests programs are forked from a process that has imported them."""

import fnmatch
from collections.abc import Iterator, Mapping

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
FORKED: Mapping[str, tuple[Forked, tuple[str, ...]]] = {
    "stacks without a model": (
        (MODEL_FREE, STACKS),
        (
            "*/chaos/test_algorithms.py",
            "*/chaos/test_campaign.py",
            "*/chaos/test_exploring.py",
            "*/chaos/test_lost_grants.py",
            "*/chaos/test_operators.py",
            "*/chaos/test_replay.py",
            "*/chaos/test_retraining.py",
            "*/chaos/test_running_ahead.py",
            "*/chaos/test_selectors.py",
            "*/chaos/test_sync_styles.py",
            "*/chaos/test_varieties.py",
            "*/e2e/model_free/test_bench.py",
            "*/e2e/model_free/test_broken_reward.py",
            "*/e2e/model_free/test_damaged_weights.py",
            "*/e2e/model_free/test_episodes.py",
            "*/e2e/model_free/test_explorer_keys.py",
            "*/e2e/model_free/test_goes_on_changed.py",
            "*/e2e/model_free/test_growth.py",
            "*/e2e/model_free/test_left_running.py",
            "*/e2e/model_free/test_model_free.py",
            "*/e2e/model_free/test_other_models.py",
            "*/e2e/model_free/test_serve.py",
            "*/e2e/model_free/test_turns.py",
            "*/integration/hostile/test_connections.py",
            "*/integration/hostile/test_requests.py",
            "*/integration/hostile/test_stream.py",
            "*/integration/inspect/test_commands.py",
            "*/integration/inspect/test_live_stage.py",
            "*/integration/monitors/test_launched.py",
            "*/integration/restarts/test_each_service.py",
            "*/integration/restarts/test_half_made_run.py",
            "*/integration/security/test_callers.py",
            "*/integration/security/test_speaking.py",
            "*/integration/security/test_studio.py",
            "*/integration/stalls/test_endings.py",
            "*/integration/stalls/test_launched.py",
            "*/integration/studio/test_giving_way.py",
            "*/integration/together/test_a_rank_dies.py",
            "*/integration/together/test_two_experiments.py",
            "*/integration/together/test_two_explorers.py",
            "*/integration/together/test_two_tenants.py",
        ),
    ),
    "stacks with vLLM and verl": (
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
    "compilers of schemas": ((SCHEMAS, SCHEMAS[:1]), ("*/integration/explorer/test_schemas.py",)),
    "gangs of ranks": (
        (TRAINER, ("tests.integration.trainer.*",)),
        ("*/integration/trainer/test_ranks_publish.py",),
    ),
}
"""Test files by what is forked in them; in all others each program is started itself."""


def forked_in(path: str) -> Forked:
    """Returns what is imported and forked for a test."""
    for forked, patterns in FORKED.values():
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
