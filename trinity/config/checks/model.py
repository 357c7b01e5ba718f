"""Checks the files of a plan's models: configuration, tokenizer, chat template, adapter."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trinity.config.checks.scorers import check_generates, check_role
from trinity.config.error_collector import did_you_mean
from trinity.config.plan.arithmetic import (
    check_dropped,
    model_keys,
    model_keys_of,
    packing_obstacle,
    sharing_obstacle,
)
from trinity.config.plan.model import local_model_directory
from trinity.config.plan.rope import changes_rope, rope_keys
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.task_storage import absolute
from trinity.config.schema.explorer import EngineConfig
from trinity.config.schema.model import LoRAConfig, ModelConfig, Names
from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue

REPLAYABLE = frozenset({"flex_olmo", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"})
"""Kinds of models whose gates weigh experts by a softmax of all, as the trainer replays them."""
ATTENTIONS = (
    *("eager", "sdpa", "flex_attention"),
    *("flash_attention_2", "flash_attention_3", "flash_attention_4"),
)
"""Kinds of attention that transformers knows; a name with a slash is a kernel on the hub."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's attention takes without a GPU."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
LORA_KEY = "model.lora_configs"
_BEYOND_LORA = (
    "use_dora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "target_parameters",
)
WITHOUT_HEADS = frozenset({"falcon_mamba", "mamba", "mamba2", "rwkv", "xlstm"})
"""Kinds of decoders whose configuration in transformers has no number of attention heads."""
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


class _NamedTemplate(BaseModel):
    name: str
    template: str


_NAMED_TEMPLATES = TypeAdapter(list[_NamedTemplate])


class _ModelConfigJson(BaseModel):
    """The fields of a model's `config.json` that are checked."""

    model_config = ConfigDict(protected_namespaces=())

    model_type: str
    architectures: list[str] | None = None
    num_attention_heads: int | None = Field(default=None, gt=0)
    hidden_size: int | None = Field(default=None, gt=0)
    head_dim: int | None = None
    max_position_embeddings: int | None = None
    rope_scaling: object = None
    vocab_size: int | None = None
    num_hidden_layers: int | None = None
    text_config: dict[str, object] = Field(default_factory=dict)
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None

    @property
    def has_experts(self) -> bool:
        """True for a mixture of experts, by any of the names that models give their number."""
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        own = (self.num_experts, self.num_local_experts, self.n_routed_experts)
        return any(own) or any(self.text_config.get(name) for name in names)

    @property
    def head_size(self) -> int | None:
        """Width of an attention head; None if the config does not give it in the usual way."""
        if self.head_dim or self.hidden_size is None or self.num_attention_heads is None:
            return self.head_dim
        return self.hidden_size // self.num_attention_heads


def _check_template(template: str, whose: str) -> None:
    from trinity.data.chat_template import check_template  # Jinja, for few files

    check_template(template, whose)


def check_model(stage: StagePlan) -> None:
    """Checks the policy's model; raises for the first thing that is missing or does not fit."""
    if stage.external_model is not None:
        return
    if stage.chat_template is not None:
        _check_template(stage.chat_template, "of `model`")
    directory = local_model_directory(stage.model_path)
    if directory is None:
        return
    architecture = _read_architecture(directory)
    check_generates(directory, "model.model_path", "the policy answers prompts")
    _check_weights(directory)
    _check_tokenizer(directory, stage.chat_template, "model.chat_template_path")
    if not stage.config.model.rope_scaling:
        _check_length(architecture, stage.max_model_len, "model", stage.model_path)
    check_sharing(stage, directory, stage.config.trainer.override_config)
    if changes_rope(stage.config.model):
        rope_keys(model_keys(directory, {}) or {}, stage.config.model)
    _check_balance(architecture, stage.model_path, stage)
    if stage.needs_rollout:
        rollout = stage.config.explorer.rollout_model
        _check_engine(architecture, rollout, "explorer.rollout_model", stage.model_path, stage)
        if stage.config.algorithm.enable_router_replay:
            _check_replay(architecture, stage.model_path, stage)
    if stage.needs_training:
        _check_attention(directory, stage.config.trainer.override_config, "trainer")


def _check_attention(directory: Path, override: Mapping[str, JsonValue], section: str) -> None:
    """Raises UserError for a model that verl's engine fails on, or an attention that drops a part.

    The trainer would raise it too.
    """
    keys = model_keys(directory, override) or {}
    kind = str(keys.get("model_type"))
    if kind in WITHOUT_HEADS and "num_attention_heads" not in keys:
        raise UserError(
            f"the model {directory} is of type `{kind}`, whose configuration has no attention "
            "heads, which verl's engine reads of every model that it trains: choose a model that "
            "has them, such as one of Qwen's or Llama's"
        )
    check_dropped(override, section, keys)


def check_auxiliary_model(stage: StagePlan, position: int) -> None:
    """Checks an auxiliary model in the same way."""
    model, at = stage.auxiliary_models[position], f"explorer.auxiliary_models[{position}]"
    if model.external is not None:
        return
    if model.chat_template is not None:
        _check_template(model.chat_template, f"of `{at}`")
    directory = local_model_directory(model.model_path, f"{at}.model_path")
    if directory is None:
        return
    architecture = _read_architecture(directory)
    check_role(model, directory, at)
    _check_weights(directory)
    _check_tokenizer(directory, model.chat_template, f"{at}.chat_template")
    _check_length(architecture, model.max_model_len, at, model.model_path)
    if model.has_gpus:
        _check_engine(architecture, model.engine, at, model.model_path, stage)


def check_critic(stage: StagePlan) -> None:
    """Checks a separate critic model, which must read the policy's tokens."""
    path = stage.critic_model_path
    if path is None or path == stage.model_path:
        return
    directory, policy = local_model_directory(path), local_model_directory(stage.model_path)
    if directory is None:
        return
    critic = _read_architecture(directory)
    _check_weights(directory)
    check_sharing(stage, directory, stage.config.trainer.critic.override_config)
    _check_attention(directory, stage.config.trainer.critic.override_config, "trainer.critic")
    if policy is None:
        return
    own, wanted = critic.vocab_size, _read_architecture(policy).vocab_size
    if own and wanted and own < wanted:
        raise UserError(
            f"`model.critic_model_path: {path}` knows {own} tokens, the policy {wanted}: "
            "give a model with the policy's tokenizer"
        )


def check_teacher(stage: StagePlan) -> None:
    """Checks a teacher in the trainer, which must read the policy's tokens as the policy does."""
    path = stage.teacher_model_path
    if path is None:
        return
    directory = local_model_directory(path, "algorithm.distillation.model_path")
    if directory is None:
        return
    key = "algorithm.distillation.model_path"
    check_generates(directory, key, "a teacher gives tokens probabilities")
    _check_weights(directory)
    policy = local_model_directory(stage.model_path)
    words = None if policy is None else _words_of(policy)
    own = _words_of(directory)
    if words is not None and own is not None and words != own:
        raise UserError(
            f"`algorithm.distillation.model_path: {path}` has other words than the policy's "
            f"tokenizer ({len(own)} and {len(words)}): give a teacher with the policy's tokenizer"
        )


def _words_of(directory: Path) -> Mapping[str, object] | list[object] | None:
    """Returns the tokens of a tokenizer as its file has them; None if it has no such file."""
    try:
        written = json.loads((directory / "tokenizer.json").read_bytes())
        words = written["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return words if isinstance(words, dict | list) else None


def check_sharing(stage: StagePlan, directory: Path, override: Mapping[str, JsonValue]) -> None:
    """Raises UserError if the ranks of the stage cannot share the sequences of a model."""
    size = stage.sequence_parallel_size
    keys = model_keys(directory, override)
    if size == 1 or not stage.needs_training or keys is None:
        return
    obstacle = packing_obstacle(keys) or sharing_obstacle(keys, size)
    if obstacle is not None:
        raise UserError(
            f"`trainer.ulysses_sequence_parallel_size: {size}` does not fit the model {directory}: "
            f"{obstacle}; give 1, or a size that fits"
        )


def check_attention(stage: StagePlan) -> None:
    """Raises UserError for an attention that there is not, or that the stage's ranks cannot run."""
    if not stage.needs_training:
        return
    trainer = stage.config.trainer
    sections = {"trainer": trainer.override_config}
    if stage.needs_critic:
        sections["trainer.critic"] = trainer.critic.override_config
    for section, override in sections.items():
        asked = model_keys_of(override).get("attn_implementation")
        at = f"`{section}.override_config.attn_implementation: {asked}`"
        if asked is None or "/" in str(asked):
            continue
        if asked not in ATTENTIONS:
            near = did_you_mean(str(asked), ATTENTIONS)
            raise UserError(f"{at} is no attention of transformers{near}")
        if str(asked).startswith(("flash_attention", "flex")) and not stage.num_rank_gpus:
            raise UserError(
                f"{at} is a kernel of GPUs, and stage `{stage.name}` trains without any: leave it "
                "out, or give `cluster.gpu_per_node`"
            )


def _read_architecture(directory: Path) -> _ModelConfigJson:
    file = directory / "config.json"
    try:
        return _ModelConfigJson.model_validate_json(file.read_bytes())
    except OSError as error:
        raise UserError(
            f"the model {directory} has no readable config.json ({error.strerror}): "
            "give a directory in Hugging Face's layout"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise UserError(f"{file} is damaged ({reason}): save the model again") from error


def _check_weights(directory: Path) -> None:
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise UserError(
            f"the model {directory} has no *.safetensors file: save its weights in that format"
        )
    for file in files:
        _check_safetensors(file)
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index} is damaged: save the model again") from error
    for shard in sorted(shards):
        if not (directory / shard).is_file():
            raise UserError(f"the model {directory} lacks its shard {shard}: copy it there")


def _check_safetensors(file: Path) -> None:
    """Checks that the header is whole and the file as long as it says; weights are not read."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            size = file.stat().st_size
            header = json.loads(stream.read(length)) if length <= size - 8 else {}
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is not a safetensors file: save the model again") from error
    if not ends or size != 8 + length + max(ends):
        raise UserError(f"{file} is cut short or damaged: copy or save the model again")


def _check_tokenizer(directory: Path, chat_template: str | None, key: str) -> None:
    if not any((directory / name).is_file() for name in _TOKENIZERS):
        raise UserError(
            f"the model {directory} has no tokenizer (such as tokenizer.json): save one with it"
        )
    file = directory / "tokenizer.json"
    try:
        json.loads(file.read_bytes() if file.is_file() else b"{}")
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is damaged: save the tokenizer again") from error
    if chat_template is not None:
        return
    template = own_template(directory)
    if not template:
        raise UserError(f"the tokenizer of {directory} has no chat template: give `{key}`")
    for name, text in _templates_by_name(template, directory).items():
        _check_template(text, f"{name}of the tokenizer in {directory}")


def _templates_by_name(template: object, directory: Path) -> dict[str, str]:
    """A tokenizer has one template, or several in a list of names and texts."""
    if isinstance(template, str):
        return {"": template}
    try:
        named = _NAMED_TEMPLATES.validate_python(template)
    except ValidationError as error:
        raise UserError(
            f"the chat template of the tokenizer in {directory} is neither a text nor a list of "
            "names and templates: save the tokenizer again"
        ) from error
    return {f"`{entry.name}` ": entry.template for entry in named}


def own_template(directory: Path) -> object:
    """The tokenizer's template: a text, or another value if there are several by name."""
    file = directory / "chat_template.jinja"
    try:
        if file.is_file():
            return file.read_text(encoding="utf-8")
        for name in ("chat_template.json", "tokenizer_config.json"):
            file = directory / name
            if file.is_file() and (found := json.loads(file.read_bytes()).get("chat_template")):
                return found
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{file} is damaged: save the tokenizer again") from error
    return None


def _check_length(architecture: _ModelConfigJson, length: int, at: str, path: str) -> None:
    longest = architecture.max_position_embeddings
    if longest and not architecture.rope_scaling and length > longest:
        raise UserError(
            f"a sequence of {length} tokens (`{at}.max_model_len`, or prompt and response "
            f"together) exceeds the {longest} positions of the model {path}: make it shorter"
        )


def _check_engine(
    architecture: _ModelConfigJson, engine: EngineConfig, at: str, path: str, stage: StagePlan
) -> None:
    heads = architecture.num_attention_heads
    tensor_parallel = engine.tensor_parallel_size
    if heads and heads % tensor_parallel:
        raise UserError(
            f"`{at}.tensor_parallel_size: {tensor_parallel}` does not divide the "
            f"{heads} attention heads of the model {path}: give a divisor"
        )
    layers, parts = architecture.num_hidden_layers, engine.pipeline_parallel_size
    if layers and parts > layers:
        raise UserError(
            f"`{at}.pipeline_parallel_size: {parts}` is more than the {layers} layers of the model "
            f"{path}: give {layers} or less"
        )
    if engine.enable_expert_parallel and not architecture.has_experts:
        raise UserError(
            f"`{at}.enable_expert_parallel: true` spreads experts, and the model {path} has none: "
            "leave it out"
        )
    head_size = architecture.head_size
    if head_size and stage.config.cluster.gpu_per_node == 0 and head_size not in CPU_HEAD_SIZES:
        raise UserError(
            f"the model {path} has heads of {head_size}, which vLLM does not run "
            f"without a GPU: give a model with heads of {', '.join(map(str, CPU_HEAD_SIZES))}"
        )


def _check_balance(architecture: _ModelConfigJson, path: str, stage: StagePlan) -> None:
    for name in ("router_aux_loss_coef", "router_z_loss_coef"):
        if getattr(stage.config.algorithm, name) and not architecture.has_experts:
            raise UserError(
                f"`algorithm.{name}` is for a mixture of experts, and the model {path} has none: "
                "leave it out"
            )


def _check_replay(architecture: _ModelConfigJson, path: str, stage: StagePlan) -> None:
    key = "`algorithm.enable_router_replay: true`"
    if not architecture.has_experts:
        raise UserError(f"{key} replays experts, and the model {path} has none: leave it out")
    if architecture.model_type not in REPLAYABLE:
        raise UserError(
            f"{key} replays experts in models of kind {', '.join(sorted(REPLAYABLE))}, and {path} "
            f"is of kind {architecture.model_type}: leave it out"
        )
    if stage.config.cluster.gpu_per_node == 0:
        raise UserError(f"{key} needs GPUs, as vLLM tells no experts without: leave it out")


def resolve_adapter_path(model: ModelConfig) -> str | None:
    """Returns the absolute directory of the adapter to start from; None if it starts at zero.

    Raises: UserError if there are several adapters, or one that cannot be trained.
    """
    if len(model.lora_configs) > 1:
        raise UserError(
            f"`{LORA_KEY}` has {len(model.lora_configs)} adapters, and one is "
            "trained at a time: leave one, or train each in a separate stage"
        )
    lora = model.lora
    if lora is None:
        return None
    for key, names_of in (("target_modules", lora.targets), ("exclude_modules", lora.excluded)):
        _check_pattern(key, names_of)
    if lora.path is None:
        return None
    directory = absolute(lora.path)
    _check_files(Path(directory), lora)
    return directory


def _check_pattern(key: str, names: Names) -> None:
    if not isinstance(names, str):
        return
    if not names.strip():
        raise UserError(f"`{LORA_KEY}`: `{key}` is empty: name layers, or remove it")
    try:
        re.compile(names)
    except re.error as error:
        raise UserError(
            f"`{LORA_KEY}`: `{key}: {names}` is not a regular expression "
            f"({error}): give names with commas in between, or fix it"
        ) from error


def _check_files(directory: Path, lora: LoRAConfig) -> None:
    where = f"`{LORA_KEY}`: `path: {directory}`"
    for name in _ADAPTER_FILES:
        if not (directory / name).is_file():
            raise UserError(f"{where} has no {name}: give an adapter's directory in peft's layout")
    try:
        saved = json.loads((directory / _ADAPTER_FILES[0]).read_bytes())
        found = {"lora_rank": saved["r"], "lora_alpha": saved["lora_alpha"]}
        is_plain = saved.get("peft_type") == "LORA" and not any(
            saved.get(key) for key in _BEYOND_LORA
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{where}: its {_ADAPTER_FILES[0]} is damaged: save the adapter again"
        ) from error
    if not is_plain or saved.get("bias", "none") != "none":
        raise UserError(f"{where} is more than low-rank matrices: give a plain LoRA adapter")
    for key, configured in (("lora_rank", lora.lora_rank), ("lora_alpha", lora.lora_alpha)):
        if key in lora.model_fields_set and found[key] != configured:
            raise UserError(
                f"{where} has {key} {found[key]}, not {configured}: write that number, or "
                "leave it out"
            )
