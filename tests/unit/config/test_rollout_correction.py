"""A rollout correction is named, changed key by key, and told of where it leaves nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, config, load, stage
from trinity.algorithm.rollout_correction.settings import PRESETS, CorrectionSettings
from trinity.config.checks.advice import advise
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.planning import plan_experiment
from trinity.errors import UserError

RECOMPUTED: dict[str, object] = {"bypass_old_logprobs": False}
ICEPOP: dict[str, object] = {"rollout_correction": {"preset": "icepop"}}


def correction(**given: object) -> CorrectionSettings:
    return stage(GRPO, algorithm={"rollout_correction": given}).algorithm.rollout_correction


def test_a_preset_stands_for_its_keys() -> None:
    assert correction(preset="geo_rs") == PRESETS["geo_rs"].settings
    assert correction(preset="none") == correction() == CorrectionSettings()


def test_a_key_beside_a_preset_is_laid_over_it() -> None:
    wider = correction(preset="geo_rs", rollout_rs_threshold="0.9_1.1")
    assert wider == replace(PRESETS["geo_rs"].settings, rollout_rs_threshold="0.9_1.1")
    assert not correction(preset="geo_rs", rollout_rs="none").is_on


def test_a_stages_preset_replaces_the_global_one_and_keeps_the_keys_beside_it() -> None:
    below = {"rollout_correction": {"preset": "geo_rs", "rollout_rs_threshold": 1.5}}
    above = {"stage_name": "a", "algorithm": {"rollout_correction": {"preset": "seq_mis"}}}
    plan = stage({**GRPO, "algorithm": {**RECOMPUTED, **below}}, stages=[above])
    assert plan.algorithm.rollout_correction == replace(
        PRESETS["seq_mis"].settings, rollout_rs_threshold=1.5
    )


def test_services_get_the_corrections_keys_and_not_its_preset() -> None:
    algorithm = stage(GRPO, algorithm={**RECOMPUTED, **ICEPOP}).algorithm
    sent = ResolvedAlgorithm.model_validate_json(algorithm.model_dump_json())
    assert sent.rollout_correction == PRESETS["icepop"].settings


@pytest.mark.parametrize("preset", PRESETS)
def test_what_leaves_no_old_rollout_is_told_where_rollouts_are_old(preset: str) -> None:
    def said(**changes: object) -> tuple[str, ...]:
        algorithm = {**RECOMPUTED, "rollout_correction": {"preset": preset}}
        return advise(plan_experiment(config(GRPO, algorithm=algorithm, **changes)))

    told = said(synchronizer={"sync_offset": 2})
    assert [f"`algorithm.rollout_correction.preset: {preset}`" in text for text in told] == (
        [True] if preset in ("geo_rs", "k3_rs") else []
    )
    assert said() == ()


@pytest.mark.parametrize("bounds", ["0.5_2", "1_2"])
def test_bounds_that_yaml_reads_as_one_number_are_refused(tmp_path: Path, bounds: str) -> None:
    def text(value: str) -> str:
        return "algorithm:\n  rollout_correction:\n    rollout_is_threshold: " + value

    with pytest.raises(UserError) as refused:
        load(tmp_path, text(bounds))
    assert str(refused.value) == (
        f"`algorithm.rollout_correction.rollout_is_threshold: {bounds}` in {tmp_path}/x.yaml:3 is "
        f'one number to YAML: put the bounds in quotes, "{bounds}"'
    )
    for meant in (f'"{bounds}"', "0.5_2.0"):
        correction = load(tmp_path, text(meant)).algorithm.rollout_correction
        assert correction.rollout_is_threshold == meant.strip('"')
