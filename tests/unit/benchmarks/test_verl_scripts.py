"""A script of veRL's is counted by what keeps it from running, and by nothing that it can set."""

from pathlib import Path

import pytest

from benchmarks import verl_scripts
from benchmarks.verl_scripts import OTHER, OUTSIDE, WRITTEN, outcome_of, table

START = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m data.train_files=/d/a.parquet"
)
GPUS = "trainer.n_gpus_per_node=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1"
ONE = "trainer.n_gpus_per_node=1 actor_rollout_ref.rollout.tensor_model_parallel_size=1"
BATCH = "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8"
EVALUATION = "data.val_files=/d/b.parquet data.max_prompt_length=8 data.max_response_length=8"
WHOLE = f"{START} {BATCH} {EVALUATION}"


@pytest.fixture(autouse=True)
def _models_and_data_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is told of no error of this machine: directories of models are not there."""
    check = verl_scripts._mistakes
    monkeypatch.setattr(
        verl_scripts,
        "_mistakes",
        lambda converted: [text for text in check(converted) if "no model directory" not in text],
    )


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (f"{WHOLE} {GPUS}", "clean"),
        (f"{WHOLE} {GPUS} data.image_key=images", "clean"),
        (f"{WHOLE} {GPUS} data.video_key=videos", "videos"),
        (f"{WHOLE} {ONE}", "clean"),
        (f"{WHOLE} {ONE} trainer.default_local_dir=$HERE/x", OUTSIDE),
        (f"{WHOLE} {GPUS} trainer.default_local_dir=$HERE/x", OUTSIDE),
        (f"{WHOLE} {GPUS} actor_rollout_ref.actor.ppo_epochs=$((8 / none))", OUTSIDE),
        (f"{WHOLE} {GPUS} trainer.test_freq=$((8 / none))", OUTSIDE),
        (f"{WHOLE} {GPUS} algorithm.rollout_correction.veto=1", OTHER),
        (f"{WHOLE} {ONE} algorithm.rollout_correction.veto=1", OTHER),
        (f"{WHOLE} {GPUS} data.custom_cls.path=a.py", WRITTEN),
        (f"{WHOLE} {GPUS} data.sampler.class_path=a.py trainer.test_freq=$((8 / no))", WRITTEN),
        (f"{WHOLE} {GPUS} data.custom_cls.path=a.py data.video_key=videos", "videos"),
        ("python3 -m verl.trainer.main_eval data.path=/d/a.parquet", "trains nothing"),
        ("echo hello", "starts no veRL"),
    ],
)
def test_a_script_is_of_the_first_kind_that_keeps_it_back(
    script: str, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script + "\n")
    outcome = outcome_of(path)
    assert outcome.kind == kind, outcome.reasons
    assert f"| {kind} | 1 |" in list(table([outcome]))
