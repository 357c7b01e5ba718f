"""Puts the settings of EasyR1 under the keys of veRL that mean the same.

EasyR1 (hiyouga/EasyR1) is a rewritten veRL: `verl.trainer.main config=examples/config.yaml`, with
sections `worker.*`. Its rules are veRL's from there on.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml

from trinity.verl.checkout import EASY_R1, Checkout
from trinity.verl.key_table import find_row
from trinity.verl.settings import VerlSetting, VerlSettings, read_yaml
from trinity.verl.values import FloatLoader, JsonValue, flat_values

NAME = "EasyR1"
MODULE = "verl.trainer.main"
_MODEL, _ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"
NAMES: Mapping[str, str] = {
    "data.rollout_batch_size": "data.train_batch_size",
    "data.mini_rollout_batch_size": "data.gen_batch_size",
    "data.answer_key": "data.response_key",
    "algorithm.kl_coef": "algorithm.kl_ctrl.kl_coef",
    "algorithm.kl_type": "algorithm.kl_ctrl.type",
    "algorithm.kl_horizon": "algorithm.kl_ctrl.horizon",
    "algorithm.kl_target": "algorithm.kl_ctrl.target_kl",
    "algorithm.online_filtering": "algorithm.filter_groups.enable",
    "trainer.max_try_make_batch": "algorithm.filter_groups.max_num_gen_batches",
    "trainer.total_episodes": "trainer.total_epochs",
    "trainer.max_steps": "trainer.total_training_steps",
    "trainer.val_freq": "trainer.test_freq",
    "trainer.save_limit": "trainer.max_actor_ckpt_to_keep",
    "trainer.save_checkpoint_path": "trainer.default_local_dir",
    "trainer.load_checkpoint_path": "trainer.resume_from_path",
    "trainer.find_last_checkpoint": "trainer.resume_mode",
    "trainer.val_generations_to_log": "trainer.log_val_generations",
    "worker.actor.clip_ratio_dual": f"{_ACTOR}.clip_ratio_c",
    "worker.actor.loss_type": f"{_ACTOR}.policy_loss.loss_mode",
    "worker.actor.tau_positive": f"{_ACTOR}.policy_loss.tau_pos",
    "worker.actor.tau_negative": f"{_ACTOR}.policy_loss.tau_neg",
    "worker.actor.model.model_path": f"{_MODEL}.path",
    "worker.actor.model.freeze_vision_tower": f"{_ACTOR}.freeze_vision_tower",
    "worker.actor.padding_free": f"{_MODEL}.use_remove_padding",
    "worker.actor.micro_batch_size_per_device_for_experience": (
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    ),
    "worker.critic.model.model_path": "critic.model.path",
    "worker.critic.padding_free": "critic.model.use_remove_padding",
    "worker.critic.micro_batch_size_per_device_for_experience": (
        "critic.forward_micro_batch_size_per_gpu"
    ),
    "worker.rollout.tensor_parallel_size": "actor_rollout_ref.rollout.tensor_model_parallel_size",
    **{
        f"worker.{ours}.{name}": f"{verls}.{theirs}"
        for ours, verls in (("actor", _ACTOR), ("critic", "critic"))
        for name, theirs in (
            ("global_batch_size", "ppo_mini_batch_size"),
            ("micro_batch_size_per_device_for_update", "ppo_micro_batch_size_per_gpu"),
            ("max_grad_norm", "grad_clip"),
            ("loss_avg_mode", "loss_agg_mode"),
            ("dynamic_batching", "use_dynamic_bsz"),
            ("ulysses_size", "ulysses_sequence_parallel_size"),
            ("optim.lr_warmup_ratio", "optim.lr_warmup_steps_ratio"),
        )
    },
    **{
        f"worker.{ours}.{name}": f"{verls}.fsdp_config.{theirs}"
        for ours, verls in (("actor", _ACTOR), ("critic", "critic.model"))
        for name, theirs in (
            ("fsdp.torch_dtype", "model_dtype"),
            ("fsdp.mp_param_dtype", "mixed_precision.param_dtype"),
            ("fsdp.mp_reduce_dtype", "mixed_precision.reduce_dtype"),
            ("offload.offload_params", "param_offload"),
            ("offload.offload_optimizer", "optimizer_offload"),
        )
    },
}
"""EasyR1's keys, and veRL's."""
_BEGINNINGS = (
    ("worker.rollout.val_override_config.", "actor_rollout_ref.rollout.val_kwargs."),
    ("worker.actor.model.", f"{_MODEL}."),
    ("worker.critic.", "critic."),
    ("worker.", "actor_rollout_ref."),
)
"""Sections whose other keys have veRL's names."""
_VALUES: Mapping[str, Mapping[str, JsonValue]] = {
    "loss_avg_mode": {"token": "token-mean", "seq": "seq-mean-token-mean"},
    "loss_type": {"default": "vanilla", "gspo_token": "gspo"},
    "find_last_checkpoint": {"True": "auto", "False": "disable"},
    "save_limit": {"-1": None},
}
_DEFAULTS = """
data:
  {train_files: "", val_files: "", answer_key: answer, rollout_batch_size: 512, seed: 1,
   filter_overlong_prompts: true, truncation: right, min_pixels: 262144, max_pixels: 4194304}
algorithm:
  {adv_estimator: grpo, disable_kl: false, use_kl_loss: false, kl_penalty: kl, kl_coef: 1e-3,
   filter_key: overall, filter_low: 0.01, filter_high: 0.99}
worker:
  actor:
    {global_batch_size: 256, micro_batch_size_per_device_for_update: 4, clip_ratio_low: 0.2,
     clip_ratio_high: 0.3, dynamic_batching: true,
     model: {trust_remote_code: true, lora: {alpha: 64}}}
  critic: {micro_batch_size_per_device_for_update: 4, dynamic_batching: true}
  rollout: {n: 1, temperature: 1.0, top_p: 1.0, top_k: -1, tensor_parallel_size: 2,
            gpu_memory_utilization: 0.6}
trainer:
  {total_epochs: 15, project_name: easy_r1, experiment_name: demo, max_try_make_batch: 20}
"""
"""EasyR1's defaults that are not veRL's; no release changed them."""
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
_ROLLOUT = "worker.rollout"
CHANGING = (
    "verl/trainer/core_algos.py",
    "verl/trainer/ray_trainer.py",
    "verl/workers/actor/dp_actor.py",
)
"""Files of EasyR1 that decide an update."""


def is_easy_r1(settings: VerlSettings) -> bool:
    """True for a start of EasyR1's program, or its configuration alone."""
    has_workers = any(setting.key.startswith("worker.") for setting in settings.all())
    return settings.module == MODULE or (not settings.module and has_workers)


def translate(settings: VerlSettings, copy: Checkout | None = None) -> None:
    """Replaces the settings by those of veRL, with EasyR1's defaults; `copy` is that of --verl."""
    settings.dialect = NAME
    settings.folder = copy_around(settings.path) if copy is None else copy.folder
    _read_base(settings)
    _lay(settings, flat_values(yaml.load(_DEFAULTS, Loader=FloatLoader)))  # a SafeLoader
    section = f"{_ROLLOUT}.val_override_config"
    of_rollout = {name: settings.peek(f"{_ROLLOUT}.{name}") for name in _SAMPLING}
    _lay(settings, ((f"{section}.{name}", value) for name, value in of_rollout.items()))
    for top in ("worker.actor", "worker.critic"):
        _put_tokens(settings, top)
    _put_kl(settings)
    for setting in settings.all():
        if (key := verls_key(setting.key)) != setting.key:
            _rename(settings, setting, key)
    if (path := settings.peek("trainer.resume_from_path")) is not None:
        where = f"load_checkpoint_path={path}"
        settings.put(VerlSetting(key="trainer.resume_mode", value="resume_path", where=where))


def verls_key(key: str) -> str:
    """VeRL's key for one of EasyR1's; the same if veRL has none."""
    if key in NAMES:
        return NAMES[key]
    beginnings = (pair for pair in _BEGINNINGS if key.startswith(pair[0]))
    for theirs, verls in beginnings:
        renamed = verls + key.removeprefix(theirs)
        return key if find_row(key) or not find_row(renamed) else renamed
    return key


def copy_around(path: Path | None) -> Path | None:
    """The folder with the copy of EasyR1 around a script."""
    above = path.resolve().parents if path is not None else ()
    return next((folder for folder in above if (folder / EASY_R1).is_file()), None)


def file_of(settings: VerlSettings, name: str) -> Path | None:
    """A file that a setting names, from the current folder, one above the script or the copy."""
    above = settings.path.resolve().parents if settings.path is not None else ()
    given = () if settings.folder is None else (settings.folder,)
    places = (folder / name for folder in (Path(), *above, *given))
    return next((place.resolve() for place in places if place.is_file()), None)


@cache
def _base(path: Path) -> list[VerlSetting]:
    found = VerlSettings()
    read_yaml(found, str(path))
    found.fill_in_references()
    return found.all()


def _read_base(settings: VerlSettings) -> None:
    """Lays the file of `config=` below the command's keys."""
    config = settings.take("config")
    if config is None:
        return
    path = file_of(settings, str(config.value))
    if path is None:
        settings.advice.append(
            f"{config.where}: there is no {config.value} here or above the script: its keys are "
            "EasyR1's defaults, start in the folder that has it"
        )
        return
    for setting in _base(path):
        if not settings.has(setting.key):
            settings.put(setting)


def _lay(settings: VerlSettings, defaults: Iterator[tuple[str, JsonValue]]) -> None:
    for key, value in defaults:
        if not settings.has(key):
            settings.put(VerlSetting(key=key, value=value, where="EasyR1's default"))


def _put_tokens(settings: VerlSettings, top: str) -> None:
    """Bounds micro-batches by tokens, as EasyR1 does with `dynamic_batching`."""
    size = settings.peek(f"{top}.micro_batch_size_per_device_for_update")
    lengths = [settings.peek(f"data.max_{name}_length") or 512 for name in ("prompt", "response")]
    ranks = settings.peek(f"{top}.ulysses_size") or 1
    numbers = [number for number in (size, *lengths, ranks) if isinstance(number, int)]
    if settings.peek(f"{top}.dynamic_batching") is not True or len(numbers) < 4:
        return
    row, prompt, response, shared = numbers
    key = f"{verls_key(f'{top}.dynamic_batching').rpartition('.')[0]}.ppo_max_token_len_per_gpu"
    where = f"{top}.micro_batch_size_per_device_for_update={row}, of rows of the longest size"
    value = -(-row * (prompt + response) // shared)
    of_rows = f"{top}.micro_batch_size_per_device_for_update"
    settings.rename(of_rows, VerlSetting(key=key, value=value, where=where))


def _put_kl(settings: VerlSettings) -> None:
    """Writes the KL term that acts: none, that in the loss, or that in the reward."""
    off = settings.value("algorithm.disable_kl", False) is True
    loss = settings.value("algorithm.use_kl_loss", False) is True
    where = f"disable_kl={off}, use_kl_loss={loss}:"
    for key, value in (
        (f"{_ACTOR}.use_kl_loss", loss and not off),
        ("algorithm.use_kl_in_reward", not loss and not off),
    ):
        settings.put(VerlSetting(key=key, value=value, where=where))
    for name, theirs in (("coef", "kl_coef"), ("type", "kl_penalty")):
        given, key = settings.peek(f"algorithm.{theirs}"), f"{_ACTOR}.kl_loss_{name}"
        settings.put(VerlSetting(key=key, value=given, where=f"algorithm.{theirs}, in veRL"))


def _rename(settings: VerlSettings, setting: VerlSetting, key: str) -> None:
    values = _VALUES.get(setting.key.rpartition(".")[2], {})
    value = values.get(str(setting.value), setting.value)
    where = f"{setting.where} {setting.key}, in veRL"
    settings.rename(setting.key, VerlSetting(key=key, value=value, where=where))
