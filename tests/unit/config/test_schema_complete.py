"""Every key that files for Trinity-RFT may hold is known here, explained, and of one fate."""

from pathlib import Path

import pytest

from trinity.config.docs.catalog import ConfigKey, all_keys
from trinity.config.loading.source import section_at
from trinity.config.loading.verl_keys import RENAMED_KEYS
from trinity.config.schema.base import KeyStatus
from trinity.config.schema.experiment import Config

KEYS = (Path(__file__).parent / "trinity_rft_keys.txt").read_text().split()
KNOWN = {key.path: key for key in all_keys()}


def test_every_key_of_trinity_rft_is_known() -> None:
    assert [key for key in KEYS if key not in KNOWN] == []
    assert len(KEYS) > 450


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("buffer.default_workflow_type", "buffer.explorer_input.default_workflow_type"),
        ("algorithm.optimizer.warmup_style", "algorithm.optimizer.lr_scheduler_type"),
        (
            "buffer.explorer_input.taskset.task_selector",
            "buffer.explorer_input.taskset.data_selector",
        ),
        (
            "buffer.trainer_input.experience_buffer.use_priority_queue",
            "buffer.trainer_input.experience_buffer.replay_buffer.enable",
        ),
        ("trainer.ppo_max_token_len_per_gpu", "trainer.max_token_len_per_gpu"),
        ("explorer.rollout_model.temperature", "model.temperature"),
    ],
)
def test_older_names_lead_to_newer_ones(old: str, new: str) -> None:
    assert KNOWN[old].status is KeyStatus.RENAMED
    assert KNOWN[old].reason == new
    assert new in KNOWN


def test_older_names_and_verls_lead_to_keys_that_exist() -> None:
    targets = [key.reason for key in KNOWN.values() if key.status is KeyStatus.RENAMED]
    targets += [renamed.to.removeprefix("/") for renamed in RENAMED_KEYS.values()]
    assert [key for key in targets if not _exists(key)] == []


def is_explained(key: ConfigKey) -> bool:
    return (
        key.meaning.endswith((".", "`"))
        and key.type != ""
        and "any value" not in key.type
        and (key.status is KeyStatus.ACTS) == (not key.reason)
    )


def test_every_key_has_a_meaning_a_type_and_a_reason_if_it_does_not_act() -> None:
    assert [key.path for key in KNOWN.values() if key.field and not is_explained(key)] == []


def _exists(key: str) -> bool:
    section = section_at(tuple(key.split(".")), Config)
    return key in KNOWN or "extra_engine_args" in key or section is not None
