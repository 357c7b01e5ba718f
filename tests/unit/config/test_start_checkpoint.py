"""A run begins with a former one's checkpoint, or says in one sentence why it cannot."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.unit.config.builders import SFT, config
from trinity.config.checks.advice import advise
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import (
    check_start_checkpoint,
    find_start_checkpoint,
    verify_start_checkpoint,
)
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.weights.manifest import ManifestHead, seal


def parts(directory: Path, ranks: Iterable[int], size: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        (directory / f"model_world_size_{size}_rank_{rank}.pt").write_bytes(b"x")
    return directory


def model(directory: Path, **changes: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    written = {"model_type": "qwen2", "hidden_size": 64, "vocab_size": 48, **changes}
    (directory / "config.json").write_text(json.dumps(written))
    (directory / "model.safetensors").write_bytes(b"x")
    return directory


def plan_with(path: Path | str, **changes: object) -> StagePlan:
    start = {"resume_mode": "resume_path", "resume_from_path": str(path)}
    return plan_experiment(config(trainer={**start, **changes})).stages[0]


def test_a_checkpoint_of_ours_and_one_of_verls_are_told_by_their_files(tmp_path: Path) -> None:
    ours = parts(tmp_path / "step-3-1", [0, 1], 2)
    parts(ours / "critic", [0, 1], 2)
    found = find_start_checkpoint(str(ours))
    assert (found.policy, found.critic, found.num_ranks) == (ours, ours / "critic", 2)
    verls = tmp_path / "global_step_3"
    parts(verls / "actor", [0], 1)
    found = find_start_checkpoint(str(verls))
    assert (found.policy, found.critic, found.num_ranks) == (verls / "actor", None, 1)
    whole = find_start_checkpoint(str(model(tmp_path / "v3-1")))
    assert (whole.is_whole, whole.num_ranks) == (True, None)


def test_what_any_number_of_ranks_can_load_is_taken_by_any(tmp_path: Path) -> None:
    ours = tmp_path / "step-3-1"
    (ours / "critic").mkdir(parents=True)
    for folder in (ours, ours / "critic"):
        (folder / "state.json").write_text('{"layout": 1}')
    found = find_start_checkpoint(str(ours))
    assert (found.policy, found.critic, found.num_ranks) == (ours, ours / "critic", None)
    assert not found.is_whole
    for ranks in (1, 2, 3):
        check_start_checkpoint(plan_with(ours, rank_num=ranks))
    with pytest.raises(UserError, match=f"did you mean {ours}"):
        find_start_checkpoint(str(tmp_path))


def test_what_holds_none_says_what_to_give(tmp_path: Path) -> None:
    run = tmp_path / "checkpoints"
    newest = parts(run / "step-9-1", [0], 1)
    with pytest.raises(UserError, match=f"did you mean {newest}"):
        find_start_checkpoint(str(run))
    with pytest.raises(UserError, match="is not a directory"):
        find_start_checkpoint(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="parts of it are missing"):
        find_start_checkpoint(str(parts(tmp_path / "half", [1], 2)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="give a folder `step-"):
        find_start_checkpoint(str(tmp_path / "empty"))


def test_it_must_be_of_as_many_ranks(tmp_path: Path) -> None:
    checkpoint = parts(tmp_path / "step-3-1", [0, 1], 2)
    check_start_checkpoint(plan_with(checkpoint, rank_num=2))
    with pytest.raises(UserError, match=r"written by 2 ranks.*set `trainer\.rank_num: 2`"):
        check_start_checkpoint(plan_with(checkpoint, rank_num=1))


def test_whole_weights_must_be_of_the_same_model(tmp_path: Path) -> None:
    own = str(model(tmp_path / "model"))
    for name, change in (("same", {}), ("other", {"hidden_size": 32})):
        path = str(model(tmp_path / name, **change))
        start = {"resume_mode": "resume_path", "resume_from_path": path}
        stage = plan_experiment(config(model={"model_path": own}, trainer=start)).stages[0]
        if not change:
            check_start_checkpoint(stage)
            continue
        with pytest.raises(UserError, match="`hidden_size` is 32 there and 64"):
            check_start_checkpoint(stage)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ('{"layout": 2}', "has layout 2, and this release reads 1: it was written by a later one"),
        ("", r"is damaged: .*state\.json cannot be read"),
        ("[]", r"is damaged: .*state\.json cannot be read"),
    ],
)
def test_a_checkpoint_of_another_layout_is_refused(tmp_path: Path, state: str, said: str) -> None:
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(UserError, match=said):
        check_start_checkpoint(plan_with(tmp_path))


@pytest.mark.parametrize("layout", ["ours", "verl's"])
def test_a_checkpoint_must_be_of_the_same_model(tmp_path: Path, layout: str) -> None:
    own = str(model(tmp_path / "model"))
    start = tmp_path / "step-3-1"
    folder = start
    if layout == "ours":
        start.mkdir()
        (start / "state.json").write_text('{"layout": 1}')
    else:
        folder = parts(start / "actor", [0], 1)

    def check(override: dict[str, object], **saved: object) -> None:
        model(folder / "huggingface", num_key_value_heads=2, **saved)
        trainer = {
            "resume_mode": "resume_path",
            "resume_from_path": str(start),
            "override_config": override,
        }
        given = config(model={"model_path": own}, trainer=trainer, cluster={"gpu_per_node": 0})
        check_start_checkpoint(plan_experiment(given).stages[0])

    check({})
    check({"hidden_size": 32}, hidden_size=32)
    with pytest.raises(UserError, match="`hidden_size` is 32 there and 64"):
        check({}, hidden_size=32)


def test_a_file_that_changed_since_it_was_written_is_found(tmp_path: Path) -> None:
    checkpoint = parts(tmp_path / "step-3-1", [0], 1)
    head = ManifestHead(
        kind="checkpoint", stage="main", step=3, incarnation=1, weights_sha256="0" * 64
    )
    seal(checkpoint, head)
    verify_start_checkpoint(find_start_checkpoint(str(checkpoint)))
    parts(checkpoint, [0], 1)
    (checkpoint / "model_world_size_1_rank_0.pt").write_bytes(b"y")
    with pytest.raises(UserError, match=r"damaged: .*rank_0\.pt has changed"):
        verify_start_checkpoint(find_start_checkpoint(str(checkpoint)))


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"resume_mode": "resume_path"}, r"needs `trainer\.resume_from_path`"),
        ({"resume_from_path": "/c"}, "`trainer.resume_mode: resume_path` alone"),
    ],
)
def test_mode_and_path_go_together(trainer: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan_experiment(config(trainer=trainer))


def test_only_the_first_stage_begins_with_it(tmp_path: Path) -> None:
    start = {"resume_mode": "resume_path", "resume_from_path": str(tmp_path)}
    names = [{"stage_name": "a"}, {"stage_name": "b"}]
    first, second = plan_experiment(config(trainer=start, stages=names)).stages
    assert (first.start_checkpoint, second.start_checkpoint) == (str(tmp_path), None)
    with pytest.raises(UserError, match=r"stage `b`.*not in a stage"):
        plan_experiment(config(stages=[{"stage_name": "a"}, {"stage_name": "b", "trainer": start}]))


def test_disabled_resuming_begins_anew_beside_the_run_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "trinity/rft").mkdir(parents=True)
    (tmp_path / "trinity/rft/config.json").touch()
    names = {
        mode: plan_experiment(
            config(
                checkpoint_root_dir=str(tmp_path),
                project="trinity",
                name="rft",
                trainer={"resume_mode": mode},
            )
        ).job_path.name
        for mode in ("auto", "disable")
    }
    assert names["auto"] == "rft"
    assert names["disable"].startswith("rft_")


@pytest.mark.parametrize(("size", "said"), [(3, "give a divisor of 4"), (0, "-1 for all")])
def test_groups_of_ranks_are_all_of_a_size(size: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        plan_experiment(config(trainer={"rank_num": 4, "fsdp_size": size}))
    assert plan_experiment(config(trainer={"rank_num": 4, "fsdp_size": 2}))


def told(path: Path | None = None, **trainer: object) -> tuple[str, ...]:
    start = {"resume_mode": "resume_path", "resume_from_path": str(path)} if path else {}
    return advise(plan_experiment(config(SFT, trainer={**start, **trainer})))


def test_parts_to_go_on_with_that_are_not_saved_are_told() -> None:
    (both,) = told(save_contents=["model"])
    assert "`trainer.save_contents` leaves out `optimizer` and `extra`" in both
    assert "the optimizer's moments and random states and the schedule start fresh" in both
    (extra,) = told(save_contents=["optimizer"], load_contents=["optimizer", "extra"])
    assert "leaves out `extra`" in extra and "optimizer" not in extra


def test_parts_that_are_left_out_on_purpose_are_not_told() -> None:
    assert told() == told(load_contents=["model"]) == ()
    assert told(save_contents=["model"], load_contents=["model", "hf_model"]) == ()
    bench = advise(plan_experiment(config(mode="bench", trainer={"save_contents": []})))
    assert not any("save_contents" in text for text in bench)


def test_a_checkpoint_to_begin_with_that_has_no_optimizer_is_told(tmp_path: Path) -> None:
    ours = tmp_path / "step-3-1"
    ours.mkdir()
    (ours / "state.json").write_text('{"layout": 1, "contents": ["model"]}')
    verls = parts(tmp_path / "global_step_3", [0], 1)
    for path in (ours, verls):
        (text,) = told(path)
        assert f"{path}` holds no state of the optimizer" in text and "starts fresh" in text
        assert told(path, load_contents=["model"]) == ()
    (ours / "state.json").write_text('{"layout": 1}')
    (verls / "optim_world_size_1_rank_0.pt").write_bytes(b"x")
    assert told(ours) == told(verls) == told(tmp_path / "nowhere") == ()


def test_whole_weights_have_no_optimizer_for_those_that_ask_for_it(tmp_path: Path) -> None:
    whole = model(tmp_path / "v3-1")
    assert told(whole) == ()
    assert len(told(whole, load_contents=["model", "optimizer"])) == 1
