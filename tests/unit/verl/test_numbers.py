"""Numbers that veRL's code makes of a script, against those that are written."""

import pytest

from tests.unit.verl.builders import flat, from_keys, missing, value
from trinity.verl.values import JsonValue

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
VAL = "actor_rollout_ref.rollout.val_kwargs"
SAMPLING = "buffer.explorer_input.eval_tasksets[0].rollout_args"
LORA = "model.lora_configs[0]"


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        ([], 0.0),
        ([f"{VAL}.temperature=1.0"], 1.0),
        ([f"{VAL}.do_sample=False", f"{VAL}.temperature=0.7"], 0.7),
        ([f"{VAL}.do_sample=True", f"{VAL}.temperature=0.6"], 0.6),
        ([f"{VAL}.do_sample=True"], 0.0),
    ],
)
def test_evaluations_sample_at_their_temperature(given: list[str], temperature: float) -> None:
    """veRL's loops read `temperature`, `top_p` and `top_k` of `val_kwargs`, and not `do_sample`."""
    assert value(from_keys(*given), f"{SAMPLING}.temperature") == temperature


def test_evaluations_do_not_take_the_sampling_of_training() -> None:
    training = ("actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.top_k=20")
    found = from_keys(*training, f"{VAL}.temperature=1.0")
    assert value(found, "model.top_p") == 0.9
    assert value(found, f"{SAMPLING}.top_p") == 1.0
    assert value(found, f"{SAMPLING}.top_k") == -1
    own = from_keys(*training, f"{VAL}.temperature=1.0", f"{VAL}.top_p=0.7")
    assert value(own, f"{SAMPLING}.top_p") == 0.7


@pytest.mark.parametrize(
    ("given", "alpha"),
    [
        ([f"{MODEL}.lora_rank=8"], 16),
        ([f"{MODEL}.lora.rank=8"], 32),
        ([f"{MODEL}.lora_rank=8", f"{MODEL}.lora_alpha=4"], 4),
        (["model.path=/m", "model.lora_rank=8"], 16),
    ],
)
def test_the_scale_of_an_adapter_is_verls(given: list[str], alpha: int) -> None:
    assert value(from_keys(*given), f"{LORA}.lora_alpha") == alpha


def test_without_an_adapter_there_is_no_scale() -> None:
    assert f"{LORA}.lora_alpha" not in flat(from_keys(f"{MODEL}.lora_rank=0").values)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("[linear_qkv,linear_fc2]", "q_proj,k_proj,v_proj,down_proj"),
        ("[q_proj,v_proj]", "q_proj,v_proj"),
        ("all-linear", "all-linear"),
    ],
)
def test_megatrons_layers_have_the_names_of_the_models_files(layers: str, expected: str) -> None:
    found = from_keys(f"{MODEL}.lora.rank=8", f"{MODEL}.lora.target_modules={layers}")
    assert value(found, f"{LORA}.target_modules") == expected


@pytest.mark.parametrize(("steps", "expected"), [("0", -1), ("-1", -1), ("5", 20)])
def test_no_steps_of_warm_up_leave_it_to_the_ratio(steps: str, expected: int) -> None:
    found = from_keys(
        f"{ACTOR}.optim.lr_warmup_steps={steps}", f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1"
    )
    assert value(found, "algorithm.optimizer.lr_warmup_steps") == expected
    assert value(found, "algorithm.optimizer.lr_warmup_steps_ratio") == 0.1


CORRECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize(
    ("given", "kind", "bounds"),
    [
        (["geometric", "1.001", "0.99"], "seq_mean_k1", "0.99_1.001"),
        (["token", "2.0", "null"], "token_k1", "0.5_2"),
        (["sequence", "4", "0.1"], "seq_sum_k1", "0.1_4"),
    ],
)
def test_older_names_of_rejection_become_todays(
    given: list[str], kind: str, bounds: JsonValue
) -> None:
    names = ("rollout_rs", "rollout_rs_threshold", "rollout_rs_threshold_lower")
    keys = [f"{CORRECTION}.{name}={text}" for name, text in zip(names, given, strict=True)]
    found = from_keys(*keys)
    assert value(found, f"{CORRECTION}.rollout_rs") == kind
    assert value(found, f"{CORRECTION}.rollout_rs_threshold") == bounds
    assert missing(found) == []
