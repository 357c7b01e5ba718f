"""Whatever veRL was told is in the YAML or in the report."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.verl.builders import converted, flat, from_keys
from tests.unit.verl.guide import GRPO_SCRIPT, PPO_SCRIPT
from trinity.config.loading.source import section_at
from trinity.config.schema.experiment import Config
from trinity.errors import UserError
from trinity.verl.convert import convert
from trinity.verl.key_table import ROWS, SUPERVISED_ROWS, find_row
from trinity.verl.row import KeyConversion
from trinity.verl.rules.algorithm import ESTIMATORS
from trinity.verl.rules.losses import ARGUMENTS, LOSS_ARGUMENTS
from trinity.verl.settings import VerlSetting, VerlSettings

ROW_KEYS = [row.verl.replace("*", "some.thing") for row in ROWS]
VALUES = st.one_of(
    st.integers(1, 4), st.booleans(), st.sampled_from(["name", "/path/x.parquet", "auto"])
)
NUMBERS = re.compile(
    r"batch_size|nnodes|n_gpus|parallel_size|rollout\.n$|steps|trigger_parameter|torchrun"
)


def is_mentioned(key: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text) is not None


@pytest.mark.parametrize("script", [PPO_SCRIPT, GRPO_SCRIPT])
def test_every_key_of_the_guides_scripts_is_mentioned(script: str, tmp_path: Path) -> None:
    text = converted(script, tmp_path).yaml
    for key in re.findall(r"([a-z_]+(?:\.[a-z_]+)+)=", script):
        assert is_mentioned(key, text)


@given(st.dictionaries(st.sampled_from(ROW_KEYS), VALUES, max_size=25))
def test_any_set_of_keys_is_mentioned(keys: dict[str, object]) -> None:
    told = VerlSettings(module="verl.trainer.main_ppo")
    for key, value in keys.items():
        number = value if isinstance(value, int) and not isinstance(value, bool) else 1
        told.put(VerlSetting(key=key, value=number if NUMBERS.search(key) else value, where="x"))  # type: ignore[arg-type]
    result = convert(told)
    assert flat(yaml.safe_load(result.body)) == flat(result.values)
    for key in keys:
        assert is_mentioned(key, result.yaml)


def test_a_key_that_is_not_known_is_reported() -> None:
    found = from_keys("actor_rollout_ref.actor.brand_new=1", "data.max_prompt_length=5")
    (line,) = [one for one in found.report if "brand_new" in one]
    assert "command line" in line
    assert "this veRL key is not known here" in line


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("actor_rollout_ref.actor.grad_clp", "actor_rollout_ref.actor.grad_clip"),
        ("algorithm.gama", "algorithm.gamma"),
        ("data.max_promt_length", "data.max_prompt_length"),
        ("trainer.test_frq", "trainer.test_freq"),
        ("actor_rollout_ref.actor.brand_new", ""),
        ("brand_new", ""),
    ],
)
def test_a_misspelt_key_is_told_with_the_one_that_is_near(written: str, meant: str) -> None:
    text = "\n".join(from_keys(f"{written}=1").report)
    assert "this veRL key is not known here" in text
    assert ("did you mean" in text) == bool(meant) and f"`{meant}`" * bool(meant) in text


def test_a_key_is_listed_once() -> None:
    keys = [row.verl for row in ROWS]
    assert sorted(keys) == sorted(set(keys))


def test_each_row_says_what_becomes_of_its_key() -> None:
    rows = [*ROWS, *SUPERVISED_ROWS]
    left_out = (KeyConversion.NOT_NEEDED, KeyConversion.MISSING)
    silent = [
        row for row in rows if not (row.note or (row.ours and row.conversion not in left_out))
    ]
    assert [row.verl for row in silent] == []


def test_keys_that_several_write_are_not_overwritten() -> None:
    found = from_keys(
        "actor_rollout_ref.actor.grad_clip=1.0", "actor_rollout_ref.actor.optim.clip_grad=0.5"
    )
    assert flat(found.values)["trainer.grad_clip"] == 1.0
    (line,) = [one for one in found.report if "optim.clip_grad" in one]
    assert "written already, from another key" in line


def test_a_number_that_is_none_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"data.train_batch_size=many is not a number"):
        from_keys("data.train_batch_size=many")


def test_patterns_give_way_to_keys_of_their_own() -> None:
    row = find_row("actor_rollout_ref.actor.optim.lr")
    assert row is not None
    assert row.ours == "algorithm.optimizer.lr"
    assert find_row("nobody.knows") is None


def test_losses_and_advantages_are_those_that_exist() -> None:
    from trinity.algorithm.advantage import ADVANTAGES
    from trinity.algorithm.policy_loss import POLICY_LOSSES
    from trinity.algorithm.signature import read_signature
    from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
    from trinity.algorithm.types import ALGORITHM_TYPES

    for kind, advantage in ESTIMATORS.values():
        assert kind in ALGORITHM_TYPES.builtins
        assert advantage in {*ADVANTAGES.builtins, *TOKEN_ADVANTAGES.builtins}
    for loss, arguments in ARGUMENTS.items():
        accepted = read_signature(POLICY_LOSSES.builtins[loss]).arguments
        assert set(arguments) == {name for name in LOSS_ARGUMENTS.values() if name in accepted}


def test_keys_that_this_system_acts_on_are_fields_of_its_configuration() -> None:
    """The sections of every row exist; single keys may be ones that are still to come."""
    for row in ROWS:
        for ours in filter(None, (one.strip() for one in row.ours.split(","))):
            top = re.split(r"[.\[]", ours)[0]
            assert top in Config.model_fields
            assert section_at((top,), Config) is not None or "." not in ours
