"""Vision models: what is refused at the check, and their sizes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import JsonValue
from torch.utils.flop_counter import FlopCounterMode
from transformers import PretrainedConfig

from tests.support.vision_models import KINDS, config_of
from tests.unit.trainer.builders import make_plan
from trinity.cli.config_check import check_on_machine
from trinity.config.checks.vision import check_vision
from trinity.config.plan.arithmetic import packing_obstacle, sharing_obstacle
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.sizing.memory import TrainingSettings, policy_terms
from trinity.config.sizing.model_shape import count_parameters, read_shape
from trinity.data.vision import VisionTokens
from trinity.errors import UserError

GRPO = {"algorithm_type": "grpo", "repeat_times": 4}


def model_of(directory: Path, kind: str) -> PretrainedConfig:
    """Writes the small files of a model that the check reads."""
    directory.mkdir(exist_ok=True)
    config = config_of(kind, vocabulary=270, token=5)
    config.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text("{}")
    return config


def with_images(plan: StagePlan) -> StagePlan:
    """Names a column of images in the plan's tasksets."""
    tasksets = [
        own.model_copy(update={"format": own.format.model_copy(update={"image_key": "images"})})
        for own in plan.tasksets
    ]
    return plan.model_copy(update={"tasksets": tuple(tasksets)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_family_is_taken_with_images_and_without(tmp_path: Path, kind: str) -> None:
    model_of(tmp_path / "model", kind)
    plan = make_plan(tmp_path / "model", GRPO)
    check_vision(plan)
    check_vision(with_images(plan))


@pytest.mark.parametrize("kind", ["qwen2", "llava", "gemma3", "qwen3_vl_moe"])
def test_other_kinds_are_refused_by_name_where_images_are_read(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": kind}))
    plan = make_plan(directory, GRPO)
    check_vision(plan)
    with pytest.raises(UserError, match=rf"of type `{kind}`.*qwen2_vl, qwen2_5_vl, qwen3_vl"):
        check_vision(with_images(plan))


@pytest.mark.parametrize(
    ("algorithm", "trainer", "told"),
    [
        (GRPO, {"use_prefix_grouper": True}, "use_prefix_grouper: true.*leave the key out"),
        ({"algorithm_type": "ppo"}, {}, "algorithm_type: ppo.*critic cannot read images"),
        (GRPO, {"ulysses_sequence_parallel_size": 2, "rank_num": 2}, "ulysses.*give 1"),
    ],
)
def test_settings_that_leave_images_out_are_refused(
    tmp_path: Path, algorithm: dict[str, object], trainer: dict[str, object], told: str
) -> None:
    model_of(tmp_path / "model", "qwen2_5_vl")
    plan = make_plan(tmp_path / "model", algorithm, trainer)
    with pytest.raises(UserError, match=told):
        check_vision(plan)


def test_a_file_with_ulysses_checks_once_that_key_is_one(tmp_path: Path) -> None:
    """The keys of Trinity-RFT's example `mix_vlm`, whose model has been fetched."""
    model_of(tmp_path / "model", "qwen2_5_vl")
    rows = "format: {prompt_key: problem, response_key: answer, image_key: images}"
    (tmp_path / "run.yaml").write_text(f"""
checkpoint_root_dir: {tmp_path}
algorithm: {{algorithm_type: mix_chord, repeat_times: 8}}
model: {{model_path: {tmp_path}/model, max_response_tokens: 64, max_model_len: 400}}
cluster: {{node_num: 1, gpu_per_node: 8}}
buffer:
  total_epochs: 4
  batch_size: 32
  train_batch_size: 320
  explorer_input:
    taskset: {{path: a/hub, {rows}}}
    default_workflow_type: simple_mm_workflow
    default_reward_fn_type: math_boxed_reward
  trainer_input:
    auxiliary_buffers: {{sft_dataset: {{storage_type: file, path: a/hub, {rows}}}}}
explorer: {{rollout_model: {{engine_num: 4}}}}
trainer: {{max_token_len_per_gpu: 800, ulysses_sequence_parallel_size: 2}}
""")
    [error] = check_on_machine(tmp_path / "run.yaml", {}).errors
    assert error.startswith(f"{tmp_path}/run.yaml:17: ") and error.endswith(": give 1")
    one: dict[str, JsonValue] = {"trainer.ulysses_sequence_parallel_size": 1}
    assert check_on_machine(tmp_path / "run.yaml", one).errors == ()


def test_a_tower_that_is_not_there_cannot_be_frozen(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with pytest.raises(UserError, match=r"freeze_vision_tower: true.*no vision tower"):
        check_vision(make_plan(directory, GRPO, {"freeze_vision_tower": True}))


def test_a_model_without_its_processor_is_refused(tmp_path: Path) -> None:
    model_of(tmp_path / "model", "qwen3_vl")
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"no preprocessor_config.json"):
        check_vision(make_plan(tmp_path / "model", GRPO))


@pytest.mark.parametrize("kind", KINDS)
def test_the_tower_is_counted_exactly(tmp_path: Path, kind: str) -> None:
    config = model_of(tmp_path / "model", kind)
    with torch.device("meta"):
        model = KINDS[kind][1](config)
    shape = read_shape(tmp_path / "model" / "config.json")
    assert shape.is_known and shape.tower is not None
    assert count_parameters(shape) == sum(own.numel() for own in model.parameters())
    of_tower = sum(own.numel() for own in model.model.visual.parameters())
    assert shape.tower.parameters == of_tower
    training = TrainingSettings(ranks=1, tokens=1000, dtype="float32")
    sizes = [
        {term.name: term.bytes for term in policy_terms(own, training)}
        for own in (shape, replace(shape, tower=None))
    ]
    assert sizes[0]["weights"] - sizes[1]["weights"] == 4 * of_tower
    assert sizes[0]["activations"] > sizes[1]["activations"]
    assert packing_obstacle(config.to_dict()) is None
    assert sharing_obstacle(config.to_dict(), 2) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_the_towers_operations_and_activations_are_those_that_torch_counts(
    tmp_path: Path, kind: str
) -> None:
    config = model_of(tmp_path / "model", kind)
    visual = KINDS[kind][1](config).float().model.visual
    shape = read_shape(tmp_path / "model" / "config.json")
    assert shape.tower is not None
    grids = torch.tensor([[1, 4, 6], [1, 16, 8]])
    patches = grids.prod(1).tolist()
    values = torch.randn(sum(patches), 3 * 2 * config.vision_config.patch_size**2)
    visual.config._attn_implementation = "eager"
    with FlopCounterMode(display=False) as counter:
        visual(values, grid_thw=grids)
    assert shape.tower.operations(patches) == pytest.approx(counter.get_total_flops(), rel=0.03)
    visual.config._attn_implementation = "sdpa"
    own = {tensor.untyped_storage().data_ptr() for tensor in (values, *visual.parameters())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = visual(values, grid_thw=grids)
    assert out is not None
    training = TrainingSettings(
        ranks=1, tokens=2 * sum(patches) // shape.tower.merged, dtype="float32"
    )
    planned = [
        {term.name: term.bytes for term in policy_terms(each, training)}["activations"]
        for each in (shape, replace(shape, tower=None))
    ]
    held = sum(storage.nbytes() for storage in kept.values())
    assert planned[0] - planned[1] == pytest.approx(held, rel=0.25)


TOKENS = VisionTokens(family="qwen2_vl", image_token=9, merge=2)


def test_positions_follow_the_grid_and_text_goes_on_behind_its_longer_side() -> None:
    tokens = [1, 2, *[9] * 6, 3, 4]
    found = TOKENS.positions(tokens, [(1, 4, 6)])
    assert found.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert TOKENS.collapsed(tokens, [6]) == [1, 2, 9, 3, 4]


def test_images_side_by_side_stay_two() -> None:
    grids, tokens = [(1, 4, 4), (1, 4, 6), (1, 2, 2)], [*[9] * 10, 3, 9, 9, 4, 9]
    assert TOKENS.spans(tokens, grids) == [(0, 4), (4, 10), (14, 15)], "9, 9 is no image"
    assert TOKENS.collapsed(tokens[:12], [4, 6]) == [9, 9, 3, 9], "the last one is the model's"
    assert TOKENS.repeats([9, 9, 3], [4, 6]).sum() == 11
    alone = [TOKENS.positions(tokens[:4], grids[:1]), TOKENS.positions(tokens[:6], grids[1:2]) + 2]
    both = TOKENS.positions(tokens[:11], grids[:2])
    assert both[:, :10].tolist() == np.concatenate(alone, axis=1).tolist()


def test_tokens_of_images_that_a_model_wrote_are_text() -> None:
    tokens = np.array([1, 9, 2, 9, 9, 9, 9, 3, 9])
    assert TOKENS.spans(tokens, [(1, 4, 4)]) == [(3, 7)]
    assert TOKENS.without_strays(tokens, [(1, 4, 4)], 0).tolist() == [1, 0, 2, 9, 9, 9, 9, 3, 0]
    assert TOKENS.positions(tokens, [(1, 4, 4)])[0].tolist() == [0, 1, 2, 3, 3, 3, 3, 5, 6]
    with pytest.raises(UserError, match="2 images belong to a sequence that has the tokens of 1"):
        TOKENS.spans(tokens, [(1, 4, 4), (1, 4, 4)])


def test_places_are_expanded_and_must_be_as_many_as_images() -> None:
    assert TOKENS.repeats([1, 9, 2, 9], [3, 2]).tolist() == [1, 3, 1, 2]
    with pytest.raises(UserError, match="2 places of images, and 1 images"):
        TOKENS.repeats([1, 9, 2, 9], [3])
