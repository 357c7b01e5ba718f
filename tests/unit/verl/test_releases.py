"""Defaults of the veRL that a script was written for, release by release."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.unit.verl.builders import flat
from trinity.errors import UserError
from trinity.verl.checkout import Checkout, find_checkout
from trinity.verl.convert import Converted, convert
from trinity.verl.releases import CHANGED, NO_BOUND, kept_defaults, parse_release
from trinity.verl.settings import read_sources
from trinity.verl.values import FloatLoader, JsonValue, flat_values
from trinity.verl.work import ConversionOptions

ACTOR = "actor_rollout_ref.actor"
LOSS = "algorithm.policy_loss_fn_args"
OLD_YAML = """
actor_rollout_ref:
  actor: {clip_ratio: 0.2, entropy_coeff: 0.001, use_kl_loss: False, ppo_epochs: 1}
  rollout: {n: 1}
algorithm: {adv_estimator: gae, kl_penalty: kl, kl_ctrl: {type: fixed, kl_coef: 0.001}}
trainer: {test_freq: -1}
"""
NEW_YAML = """
defaults: [actor@actor_rollout_ref.actor: dp_actor, data@data: legacy_data, _self_]
actor_rollout_ref: {rollout: {n: 1}}
algorithm: {use_kl_in_reward: False, kl_penalty: kl, kl_ctrl: {kl_coef: 0.001}}
trainer: {test_freq: -1}
"""
ACTOR_YAML = """
clip_ratio: 0.2
clip_ratio_low: 0.2
clip_ratio_high: 0.2
clip_ratio_c: 3.0
entropy_coeff: 0
"""
OLD_CODE = {
    "workers/actor/dp_actor.py": "use_kl_loss clip_ratio range(self.config.ppo_epochs)",
    "trainer/ppo/ray_trainer.py": "if not self.config.actor_rollout_ref.actor.get('use_kl_loss')",
}
NEW_CODE = {
    "workers/actor/dp_actor.py": "ppo_epochs clip_ratio_low clip_ratio_high clip_ratio_c",
    "workers/fsdp_workers.py": "warmup_style",
    "trainer/ppo/ray_trainer.py": "if self.config.algorithm.use_kl_in_reward:",
    "utils/dataset/rl_dataset.py": "filter_overlong_prompts",
}


def checkout(folder: Path, version: str, files: Mapping[str, str]) -> None:
    """A checkout that fails as soon as anything of it is run."""
    code = {"__init__.py": "", "trainer/main_ppo.py": "", **files}
    for name, text in code.items():
        path = folder / "verl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise SystemExit('run')\n# {text}" if name.endswith(".py") else text)
    (folder / "verl" / "version").mkdir(exist_ok=True)
    (folder / "verl" / "version" / "version").write_text(version)


def old_checkout(folder: Path, version: str = "0.2", **more: str) -> None:
    checkout(
        folder,
        version,
        {"trainer/config/ppo_trainer.yaml": OLD_YAML, **OLD_CODE, **more},
    )


def new_checkout(folder: Path, version: str) -> None:
    config = "trainer/config"
    files = {
        f"{config}/ppo_trainer.yaml": NEW_YAML,
        f"{config}/actor/dp_actor.yaml": "defaults: [actor, _self_]\ngrad_clip: 1.0\n",
        f"{config}/actor/actor.yaml": ACTOR_YAML,
        f"{config}/data/legacy_data.yaml": "filter_overlong_prompts: False\n",
    }
    checkout(folder, version, files | NEW_CODE)


def convert_in(folder: Path, *keys: str, version: str | None = None) -> Converted:
    script = folder / "examples" / "run.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        f"python3 -m verl.trainer.main_ppo data.train_batch_size=1024 {' '.join(keys)}"
    )
    return convert(read_sources([str(script)]), ConversionOptions(verl_version=version))


def terms(found: Converted) -> tuple[JsonValue, ...]:
    """The parts of the objective that releases differ in."""
    values = flat(found.values)
    return tuple(
        values.get(key)
        for key in (
            "algorithm.kl_penalty_fn",
            "algorithm.kl_penalty_fn_args.kl_coef",
            "algorithm.entropy_loss_fn_args.entropy_coef",
            f"{LOSS}.clip_range",
            f"{LOSS}.clip_range_low",
            f"{LOSS}.clip_ratio_c",
            "model.enable_prompt_truncation",
        )
    )


def expected_terms(version: str) -> tuple[JsonValue, ...]:
    """Those of a script with `clip_ratio=0.1`, as the code of each tag has them."""
    release = parse_release(version)
    if release >= (0, 4):
        return ("none", None, None, 0.1, 0.2, 3.0, None)
    return ("k1", 0.001, 0.001, 0.1, None, NO_BOUND, None if release == (0, 3) else True)


@pytest.mark.parametrize("version", ["0.1", "0.2", "0.3.0.post1"])
def test_an_older_release_has_the_penalty_and_the_bonus(version: str, tmp_path: Path) -> None:
    file = "utils/dataset/rl_dataset.py"
    has_filter = {file: "filter_overlong_prompts"} if version.startswith("0.3") else {}
    old_checkout(tmp_path, version, **has_filter)
    assert terms(convert_in(tmp_path, f"{ACTOR}.clip_ratio=0.1")) == expected_terms(version)


@pytest.mark.parametrize("version", ["0.4.0", "0.5.0", "0.6.1", "0.7.0", "0.8.0.dev", "0.9.1"])
def test_a_newer_release_has_neither(version: str, tmp_path: Path) -> None:
    new_checkout(tmp_path, version)
    assert terms(convert_in(tmp_path, f"{ACTOR}.clip_ratio=0.1")) == expected_terms(version)


@pytest.mark.parametrize("minor", range(1, 10))
def test_a_version_that_is_given_decides_without_a_checkout(minor: int, tmp_path: Path) -> None:
    version = f"0.{minor}"
    found = convert_in(tmp_path, f"{ACTOR}.clip_ratio=0.1", version=version)
    assert terms(found) == expected_terms(version)
    every = flat(found.values)["explorer.eval_interval"]
    assert every == 2 if minor == 1 else isinstance(every, int) and every >= 1_000_000


def test_a_loss_of_the_divergence_takes_the_penaltys_place(tmp_path: Path) -> None:
    old_checkout(tmp_path)
    found = flat(convert_in(tmp_path, f"{ACTOR}.use_kl_loss=True").values)
    assert found["algorithm.kl_penalty_fn"] == "none"
    assert found["algorithm.kl_loss_fn"] == "low_var_kl"


def test_a_projects_own_values_are_defaults_and_its_script_decides(tmp_path: Path) -> None:
    old_checkout(tmp_path)
    config = tmp_path / "verl/trainer/config/ppo_trainer.yaml"
    config.write_text(
        OLD_YAML.replace("kl_coef: 0.001", "kl_coef: 0.005, target: 1").replace("n: 1", "n: 8")
    )
    found = convert_in(tmp_path)
    assert flat(found.values)["algorithm.kl_penalty_fn_args.kl_coef"] == 0.005
    assert flat(found.values)["algorithm.repeat_times"] == 8
    assert "# ppo_trainer.yaml:4 actor_rollout_ref.rollout.n" in found.yaml
    given = flat(convert_in(tmp_path, "algorithm.kl_ctrl.kl_coef=0.5").values)
    assert given["algorithm.kl_penalty_fn_args.kl_coef"] == 0.5


def test_a_key_that_no_code_reads_does_not_act(tmp_path: Path) -> None:
    silent = {"workers/actor/dp_actor.py": "use_kl_loss", "workers/fsdp_workers.py": "constant"}
    old_checkout(tmp_path, **silent)
    keys = ("+algorithm.use_kl_in_reward=False", f"{ACTOR}.ppo_epochs=4")
    found = convert_in(tmp_path, *keys, f"{ACTOR}.optim.warmup_style=cosine")
    assert terms(found)[:2] == ("k1", 0.001)
    assert flat(found.values).get("trainer.ppo_epochs", 1) == 1
    assert flat(found.values)["algorithm.optimizer.lr_scheduler_type"] == "constant"
    assert sum("which does not read it" in line for line in found.report) >= 3
    megatron = convert_in(tmp_path, f"{ACTOR}.strategy=megatron", f"{ACTOR}.ppo_epochs=4")
    assert flat(megatron.values)["trainer.ppo_epochs"] == 4


def test_a_configuration_without_its_code_is_that_of_its_release(tmp_path: Path) -> None:
    config = tmp_path / "verl" / "trainer" / "config"
    config.mkdir(parents=True)
    (config / "ppo_trainer.yaml").write_text("algorithm: {kl_ctrl: {kl_coef: 0.25}}")
    assert terms(convert_in(tmp_path))[0] == "none"
    (tmp_path / "setup.py").write_text("setup(version='0.3.0')")
    assert terms(convert_in(tmp_path))[:2] == ("k1", 0.25)


def test_without_a_version_the_report_says_what_hangs_on_it(tmp_path: Path) -> None:
    (said,) = [line for line in convert_in(tmp_path).report if "--verl-version" in line]
    assert "veRL 0.9" in said and "algorithm.use_kl_in_reward is True until 0.3" in said
    assert "entropy_coeff is 0.001" in said and "clip_ratio_low" not in said
    settled = ("algorithm.use_kl_in_reward=False", f"{ACTOR}.entropy_coeff=0")
    assert not any("--verl-version" in line for line in convert_in(tmp_path, *settled).report)


def test_a_version_is_read_from_text_and_an_unknown_one_refused(tmp_path: Path) -> None:
    new_checkout(tmp_path, "no version")
    (tmp_path / "setup.py").write_text("raise SystemExit\nsetup(version='0.4.1')")
    assert Checkout(tmp_path).release == (0, 4)
    with pytest.raises(UserError, match=r"give one from 0\.1 to 0\.9"):
        convert_in(tmp_path, version="two")


def test_a_checkout_is_found_above_a_script_or_in_a_folder_of_its_repository(
    tmp_path: Path,
) -> None:
    old_checkout(tmp_path / "project" / "vendored")
    script = tmp_path / "project" / "scripts" / "run.sh"
    assert find_checkout(script) is None
    (tmp_path / "project" / "README.md").write_text("")
    found = find_checkout(script)
    assert found is not None and found.folder == tmp_path / "project" / "vendored"


@pytest.mark.skipif(find_spec("verl") is None, reason="its own files are compared")
def test_verls_own_configuration_is_composed_and_has_todays_defaults() -> None:
    spec = find_spec("verl")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    generated = folder / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    theirs = dict(flat_values(yaml.load(generated.read_text(), FloatLoader)))
    composed = Checkout(folder.parent).defaults("ppo_trainer")
    ours = {key: composed[key].value for key in theirs if key != "model_engine"}
    assert ours == {key: value for key, value in theirs.items() if key != "model_engine"}
    table = {row.key: row.newest for row in (*CHANGED, *kept_defaults())}
    known = {key for key in table if "${" not in str(theirs.get(key, "${"))} - {
        key for key, value in theirs.items() if value is None
    }
    assert {key: table[key] for key in known} == {key: theirs[key] for key in known}
    assert len(known) > 50


def test_projects_options_of_evaluations_go_to_each_taskset(tmp_path: Path) -> None:
    rollout = "actor_rollout_ref.rollout"
    keys = (f"+{rollout}.n_val=16", f"+{rollout}.val_temperature=0.6", f"{rollout}.val_top_p=0.7")
    found = flat(convert_in(tmp_path, *keys, "data.val_files=[/d/a.parquet,/d/b.parquet]").values)
    for position in (0, 1):
        key = f"buffer.explorer_input.eval_tasksets[{position}]"
        sampling = (f"{key}.rollout_args.temperature", f"{key}.rollout_args.top_p")
        assert found[f"{key}.repeat_times"] == 16
        assert [found[name] for name in sampling] == [0.6, 0.7]
