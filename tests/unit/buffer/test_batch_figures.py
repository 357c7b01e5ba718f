"""From the figures of groups to those of a batch."""

import pytest

from services.buffer.domain.batches import pipeline_metrics


def test_counts_add_up_ratios_are_averaged_and_the_rest_has_mean_min_and_max() -> None:
    groups = [
        {"filtered_count": 2.0, "skipped_group_ratio": 1.0, "group_advantages/reward_mean": 0.5},
        {"filtered_count": 3.0, "skipped_group_ratio": 0.0, "group_advantages/reward_mean": 1.0},
        {"filtered_count": 0.0, "skipped_group_ratio": 0.0},
    ]
    assert pipeline_metrics(groups) == pytest.approx(
        {
            "experience_pipeline/filtered_count": 5.0,
            "experience_pipeline/skipped_group_ratio": 1 / 3,
            "experience_pipeline/group_advantages/reward_mean/mean": 0.75,
            "experience_pipeline/group_advantages/reward_mean/min": 0.5,
            "experience_pipeline/group_advantages/reward_mean/max": 1.0,
        }
    )


def test_what_is_not_finite_spoils_no_figure() -> None:
    assert pipeline_metrics([{"x": float("nan")}, {"x": 1.0}])["experience_pipeline/x/mean"] == 1.0
