"""Converts a configuration of this system to veRL's command line, as far as possible."""

import re
from dataclasses import dataclass, field

import yaml

from trinity.algorithm.units import SAMPLE_UNIT, UNIT_ARGUMENT
from trinity.config.loading.yaml_errors import yaml_error_sentence
from trinity.errors import UserError
from trinity.verl.key_table import ROWS, SUPERVISED_ROWS
from trinity.verl.rules.agents import AGENT_WORKFLOW, ROLLOUT
from trinity.verl.rules.algorithm import ESTIMATORS, KL_NAMES, NO_LIMIT, PIPELINE
from trinity.verl.rules.batches import NEVER, STEP_COUNTS
from trinity.verl.rules.data import TRUTH
from trinity.verl.rules.losses import ARGUMENTS, BYPASS_LOSSES, LOSS_ARGUMENTS, LOSS_NAMES
from trinity.verl.rules.rewards import DAPO_REWARD
from trinity.verl.table.rollout import AGENT, MULTI_TURN
from trinity.verl.values import FloatLoader, JsonValue, shell_word
from trinity.verl.work import ACTOR

_INPUT = "buffer.explorer_input"
_ON_THEIR_OWN = (
    "checkpoint_root_dir",
    "mode",
    "buffer.train_batch_size",
    "synchronizer.sync_style",
    "synchronizer.sync_timeout",
    "trainer.total_steps",
)
"""Keys that follow from others in veRL, or are its only way."""


@dataclass(slots=True)
class _BackConversion:
    """Our keys that are still to be converted, and veRL's that were written."""

    left: dict[str, JsonValue]
    verl: dict[str, JsonValue] = field(default_factory=dict)

    def pop(self, key: str, default: JsonValue = None) -> JsonValue:
        """Takes the value of one of our keys, which counts as converted."""
        return self.left.pop(key, default)

    def number(self, key: str, default: int) -> int:
        """Takes a number in the same way."""
        value = self.left.pop(key, default)
        return value if isinstance(value, int) else default


def verl_command(text: str, path: object = "the file") -> str:
    """Returns veRL's command for the YAML `text`, with unconvertible keys as comments.

    Raises: UserError if the text is not a configuration.
    """
    try:
        tree = yaml.load(text, Loader=FloatLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise UserError(yaml_error_sentence(error, path, text)) from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no `key: value` lines: give a YAML file of this system")
    conversion = _BackConversion(dict(_flat(tree, "")))
    is_supervised = conversion.left.get("mode") == "train"
    if not is_supervised:
        _convert_data(conversion)
        _convert_algorithm(conversion)
        _convert_batches(conversion)
    _convert_places(conversion)
    _convert_template_kwargs(conversion)
    for row in SUPERVISED_ROWS if is_supervised else ROWS:
        if row.is_invertible and row.ours in conversion.left and row.verl not in conversion.verl:
            value = conversion.pop(row.ours)
            conversion.verl[row.verl] = row.inverse(value) if row.inverse else value
    for key in _ON_THEIR_OWN:
        conversion.pop(key)
    module = "verl.trainer.sft_trainer" if is_supervised else "verl.trainer.main_ppo"
    words = [
        f"python3 -m {module}",
        *(shell_word(k, v) for k, v in sorted(conversion.verl.items())),
    ]
    lines = [" \\\n    ".join(words)]
    if conversion.left:
        lines.append("# no counterpart in veRL, set it by veRL's own means if it matters:")
        lines += [f"#   {key}: {value}" for key, value in conversion.left.items()]
    return "\n".join(lines) + "\n"


def _flat(node: object, key: str) -> list[tuple[str, JsonValue]]:
    """Dotted keys; lists of sections by their positions, other lists whole."""
    if isinstance(node, dict) and node:
        return [
            pair
            for name, inner in node.items()
            for pair in _flat(inner, f"{key}.{name}".strip("."))
        ]
    if isinstance(node, list) and any(isinstance(inner, dict) for inner in node):
        return [pair for i, inner in enumerate(node) for pair in _flat(inner, f"{key}[{i}]")]
    return [(key, node)]  # type: ignore[list-item]  # a YAML value


def _convert_data(conversion: _BackConversion) -> None:
    single = f"{_INPUT}.taskset"
    trained = (
        [single]
        if f"{single}.path" in conversion.left
        else _listed(conversion, f"{_INPUT}.tasksets")
    )
    _convert_files(conversion, "data.train_files", trained)
    evaluated = _listed(conversion, f"{_INPUT}.eval_tasksets")
    _convert_files(conversion, "data.val_files", evaluated)
    for key in [*trained, *evaluated]:
        if conversion.left.get(f"{key}.format.response_key") == TRUTH:
            conversion.pop(f"{key}.format.response_key")  # veRL reads the truth there alone
    for name in ("prompt_key", "response_key", "reward_fn_key", "image_key", "video_key"):
        for key in [*trained, *evaluated]:
            value = conversion.pop(f"{key}.format.{name}")
            if value is not None:
                conversion.verl.setdefault(f"data.{name}", value)
    for key in trained:
        selector = conversion.pop(f"{key}.data_selector.selector_type", "sequential")
        conversion.verl["data.shuffle"] = selector == "shuffle"
        if (seed := conversion.pop(f"{key}.data_selector.seed")) is not None:
            conversion.verl["data.seed"] = seed
    _convert_dapo_reward(conversion, [*trained, *evaluated])
    _convert_agents(conversion, [*trained, *evaluated])
    val = "actor_rollout_ref.rollout.val_kwargs"
    for key in evaluated:
        if (times := conversion.pop(f"{key}.repeat_times")) is not None:
            conversion.verl[f"{val}.n"] = times
        temperature = conversion.pop(f"{key}.rollout_args.temperature")
        if temperature is not None:
            conversion.verl[f"{val}.do_sample"] = temperature != 0
            conversion.verl[f"{val}.temperature"] = temperature
        for name in ("top_p", "top_k"):
            if (value := conversion.pop(f"{key}.rollout_args.{name}")) is not None:
                conversion.verl[f"{val}.{name}"] = value


def _convert_dapo_reward(conversion: _BackConversion, tasksets: list[str]) -> None:
    """Converts DAPO's reward to veRL's manager, and its penalty, of which veRL has one for all."""
    if conversion.left.get(f"{_INPUT}.default_reward_fn_type") != DAPO_REWARD:
        return
    conversion.pop(f"{_INPUT}.default_reward_fn_type")
    conversion.verl["reward.reward_manager.name"] = "dapo"
    for key in tasksets:
        for ours, verl in (
            ("enable_overlong_penalty", "overlong_buffer_cfg.enable"),
            ("penalty_factor", "overlong_buffer_cfg.penalty_factor"),
            ("cache_length", "overlong_buffer_cfg.len"),
            ("max_response_length", "max_resp_len"),
        ):
            if (value := conversion.pop(f"{key}.reward_fn_args.{ours}")) is not None:
                conversion.verl.setdefault(f"+reward.reward_kwargs.{verl}", value)


def _convert_agents(conversion: _BackConversion, tasksets: list[str]) -> None:
    """Converts veRL's agent loops and tools, which are arguments of a workflow here."""
    if conversion.left.get(f"{_INPUT}.default_workflow_type") != AGENT_WORKFLOW:
        return
    conversion.pop(f"{_INPUT}.default_workflow_type")
    for section, names in (("multi_turn", MULTI_TURN), ("agent", AGENT)):
        for name in names:
            for key in tasksets:
                value = conversion.pop(f"{key}.workflow_args.{section}.{name}")
                if value is not None:
                    conversion.verl[f"{ROLLOUT}.{section}.{name}"] = value


def _convert_filter(conversion: _BackConversion) -> None:
    """Converts the operator or the threshold that leaves groups out whose samples are alike."""
    operator, section = f"{PIPELINE}.name", "algorithm.filter_groups"
    threshold = "algorithm.advantage_fn_args.std_threshold"
    if conversion.left.get(operator) == "dapo_dynamic_sampling":
        conversion.pop(operator)
        conversion.verl[f"{section}.metric"] = "acc"
    elif conversion.left.get(threshold) == 0:
        conversion.pop(threshold)
        conversion.verl[f"{section}.metric"] = "seq_reward"
    else:
        return
    conversion.verl[f"{section}.enable"] = True
    rounds = conversion.number("buffer.max_refill_rounds", 3)
    conversion.verl[f"{section}.max_num_gen_batches"] = 0 if rounds >= NO_LIMIT else rounds
    if conversion.left.get("buffer.short_batch") == "fail":
        conversion.pop("buffer.short_batch")


def _listed(conversion: _BackConversion, key: str) -> list[str]:
    found = (re.match(rf"{re.escape(key)}\[\d+\]", name) for name in conversion.left)
    return list(dict.fromkeys(match[0] for match in found if match))


def _convert_files(conversion: _BackConversion, verl: str, tasksets: list[str]) -> None:
    files: list[JsonValue] = []
    for key in tasksets:
        path, split = str(conversion.pop(f"{key}.path")), conversion.pop(f"{key}.split", "train")
        is_file = path.rpartition("/")[2].endswith((".parquet", ".jsonl", ".json"))
        files.append(path if is_file else f"{path}/{split}.parquet")
        conversion.pop(f"{key}.name")
        conversion.pop(f"{key}.storage_type")
    if files:
        conversion.verl[verl] = files if len(files) > 1 else files[0]


def _convert_algorithm(conversion: _BackConversion) -> None:
    kind, advantage = (
        conversion.pop("algorithm.algorithm_type", "grpo"),
        conversion.pop("algorithm.advantage_fn"),
    )
    advantage = advantage or {"reinforceplusplus": "reinforce_plus_plus"}.get(str(kind), kind)
    if advantage == "pf_ppo":
        conversion.verl["algorithm.use_pf_ppo"] = True
        for name in ("reweight_method", "weight_pow"):
            if (value := conversion.pop(f"algorithm.advantage_fn_args.{name}")) is not None:
                conversion.verl[f"algorithm.pf_ppo.{name}"] = value
        advantage = "ppo"
    if advantage in ("dr_grpo", "grpo_verl"):
        if advantage == "dr_grpo":
            conversion.verl["algorithm.norm_adv_by_std_in_grpo"] = False
        advantage = "grpo"
    estimator = next((verl for verl, (_, ours) in ESTIMATORS.items() if ours == advantage), None)
    if estimator is None:
        conversion.left["algorithm.advantage_fn"] = advantage
    else:
        conversion.verl["algorithm.adv_estimator"] = estimator
    _convert_filter(conversion)
    unit = f"algorithm.advantage_fn_args.{UNIT_ARGUMENT}"
    if conversion.left.get(unit) == SAMPLE_UNIT:
        conversion.pop(unit)
    for name in ("gamma", "lam"):
        if (value := conversion.pop(f"algorithm.advantage_fn_args.{name}")) is not None:
            conversion.verl[f"algorithm.{name}"] = value
    _convert_kl(conversion, "kl_penalty_fn", "algorithm.use_kl_in_reward", "algorithm.kl_penalty")
    _convert_kl(conversion, "kl_loss_fn", f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_type")
    for ours, verl in (
        ("kl_penalty_fn_args.kl_coef", "algorithm.kl_ctrl.kl_coef"),
        ("kl_loss_fn_args.kl_coef", f"{ACTOR}.kl_loss_coef"),
        ("loss_agg_mode", f"{ACTOR}.loss_agg_mode"),
        *(
            (f"policy_loss_fn_args.{ours}", f"{ACTOR}.{verl}")
            for verl, ours in LOSS_ARGUMENTS.items()
        ),
    ):
        if (value := conversion.pop(f"algorithm.{ours}")) is not None:
            conversion.verl[verl] = value
    _convert_loss(conversion)


def _convert_loss(conversion: _BackConversion) -> None:
    """Converts the loss; in bypass mode veRL has two losses under another key."""
    loss = str(conversion.left.get("algorithm.policy_loss_fn", "ppo"))
    kinds = {ours: verl for verl, ours in BYPASS_LOSSES.items()}
    bypasses = conversion.left.get("algorithm.bypass_old_logprobs") is True
    if bypasses and loss in kinds:
        conversion.verl["algorithm.rollout_correction.bypass_mode"] = conversion.pop(
            "algorithm.bypass_old_logprobs"
        )
        conversion.verl["algorithm.rollout_correction.loss_type"] = kinds[loss]
        conversion.pop("algorithm.policy_loss_fn")
    elif loss in ARGUMENTS and conversion.pop("algorithm.policy_loss_fn") is not None:
        names = {ours: verl for verl, ours in LOSS_NAMES.items()}
        conversion.verl[f"{ACTOR}.policy_loss.loss_mode"] = names.get(loss, loss)


def _convert_kl(conversion: _BackConversion, ours: str, switch: str, kind: str) -> None:
    name = conversion.pop(f"algorithm.{ours}")
    if name is None:
        return
    conversion.verl[switch] = name != "none"
    if name != "none":
        names = {ours: verl for verl, ours in reversed(KL_NAMES.items()) if verl != "k3"}
        conversion.verl[kind] = names.get(str(name), name)
    if name == "k3":
        conversion.left[f"algorithm.{ours}"] = "k3, which veRL bounds at 10"


def _convert_batches(conversion: _BackConversion) -> None:
    batch = conversion.number("buffer.batch_size", 1)
    interval = conversion.number("synchronizer.sync_interval", 1)
    conversion.verl[f"{ACTOR}.ppo_mini_batch_size"] = batch
    conversion.verl["data.train_batch_size"] = batch * interval
    steps = conversion.number("buffer.total_steps", 0) or conversion.number(
        "trainer.total_steps", 0
    )
    if steps:
        conversion.verl["trainer.total_training_steps"] = -(-steps // interval)
    for verl, ours in STEP_COUNTS.items():
        if isinstance(count := conversion.left.get(ours), int) and count > 0:
            conversion.verl[verl] = -(-count // interval)
            conversion.pop(ours)
    if "explorer.eval_interval" in conversion.left:
        every = conversion.number("explorer.eval_interval", -1)
        conversion.verl["trainer.test_freq"] = -1 if every >= NEVER else every
    if "trainer.save_interval" in conversion.left:
        every = conversion.number("trainer.save_interval", 0)
        conversion.verl["trainer.save_freq"] = every or -1


def _convert_template_kwargs(conversion: _BackConversion) -> None:
    ours = "model.chat_template_kwargs."
    for key in [name for name in conversion.left if name.startswith(ours)]:
        verl = f"+data.apply_chat_template_kwargs.{key.removeprefix(ours)}"
        conversion.verl[verl] = conversion.pop(key)


def _convert_places(conversion: _BackConversion) -> None:
    for ours, verl in (
        ("cluster.node_num", "trainer.nnodes"),
        ("cluster.gpu_per_node", "trainer.n_gpus_per_node"),
    ):
        if (value := conversion.pop(ours)) is not None:
            conversion.verl[verl] = value
    root, project = (
        conversion.left.get("checkpoint_root_dir"),
        conversion.left.get("project", "trinity"),
    )
    if root is not None:
        name = conversion.left.get("name", "rft")
        conversion.verl["trainer.default_local_dir"] = f"{root}/{project}/{name}"
    for ours, verl in (
        ("trainer.trainer_strategy", f"{ACTOR}.strategy"),
        ("explorer.rollout_model.engine_type", "actor_rollout_ref.rollout.name"),
    ):
        if (value := conversion.pop(ours)) is not None:
            conversion.verl[verl] = value
    if (monitor := conversion.pop("monitor.monitor_type")) is not None:
        conversion.verl["trainer.logger"] = ["console", *([] if monitor == "none" else [monitor])]
    judge = "explorer.auxiliary_models[0]"
    if (model := conversion.pop(f"{judge}.model_path")) is not None:
        conversion.verl["reward_model.enable"] = True
        conversion.verl["reward_model.model.path"] = model
        size = conversion.pop(f"{judge}.tensor_parallel_size", 1)
        conversion.verl["reward_model.rollout.tensor_model_parallel_size"] = size
