"""verl's engines for our micro-batches: rows packed without padding, or padded.

Shapes: N rows of L tokens, T tokens of a packed row, C columns of outputs, S outputs, V tokens.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from tensordict import TensorDict
from torch import nn
from transformers import PreTrainedModel
from verl.utils import tensordict_utils
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from services.trainer.backend.expert_balance import (
    BalanceRows,
    ExpertBalance,
    rows_of_tokens,
    trained_rows,
)
from services.trainer.backend.expert_replay import ExpertReplay
from services.trainer.backend.loss_scale import LossScale
from services.trainer.backend.packed_attention import (
    EXCHANGE_ARGUMENT,
    RUNS_ARGUMENT,
    SHARED_ARGUMENT,
    PackedRows,
    RowExtents,
)
from services.trainer.backend.sequence_shards import SequenceShards
from services.trainer.backend.token_head import HeadTask, OutputRequest, TokenHead, token_outputs
from services.trainer.backend.vision import (
    IMAGES,
    MODEL_IDS,
    POSITIONS,
    MicroBatchImages,
    unpatched,
)
from trinity.algorithm.teacher_divergence import Direction, TeacherTokens
from trinity.config.schema.model import ALL_LINEAR, Names
from trinity.data.conversations import FAMILIES
from trinity.errors import UserError

KEY = "model.lora_configs"
ModelInputs = tuple[dict[str, Any], dict[str, Any]]
"""verl's: arguments of the model, and arguments for reading its output."""
_PACKED = "packed"
PROMPT_OWNERS = "prompt_owners"
"""[N]: for each row the first of the micro-batch with its prompt, if prompts are computed once."""


def check_layers(model: PreTrainedModel, targets: Names, excluded: Names) -> None:
    """Checks that every given name matches a layer that can be adapted.

    Raises: UserError naming those that do not, and the layers that exist.
    """
    layers = dict(model.named_modules())
    linear = {name for name, layer in layers.items() if isinstance(layer, nn.Linear)}
    for key, wanted in (("target_modules", targets), ("exclude_modules", excluded)):
        _check_names(key, wanted, layers, linear)
    if targets == ALL_LINEAR:
        return
    chosen = sorted(adapted(layers, targets) - adapted(layers, excluded))
    if not chosen:
        raise UserError(
            f"`{KEY}`: `exclude_modules` excludes all of `target_modules`: exclude fewer modules"
        )
    _check_kinds(model, chosen, linear)


def adapted(layers: Iterable[str], wanted: Names) -> set[str]:
    """Matches names as peft does: a string is a regex for whole names, a list has suffixes."""
    if isinstance(wanted, str):
        return {name for name in layers if re.fullmatch(wanted, name)}
    return {
        name for name in layers if any(name == end or name.endswith(f".{end}") for end in wanted)
    }


def _check_names(key: str, wanted: Names, layers: Iterable[str], linear: set[str]) -> None:
    parts = [wanted] if isinstance(wanted, str) else [(name,) for name in wanted]
    unmatched = [
        str(part if isinstance(part, str) else part[0])
        for part in parts
        if part != ALL_LINEAR and not adapted(layers, part)
    ]
    if unmatched:
        raise UserError(
            f"`{KEY}`: no layer of the model is called {_listed(unmatched)}, as `{key}` has it: "
            f"its linear layers are {_listed(_short(linear))}"
        )


def _check_kinds(model: PreTrainedModel, chosen: Sequence[str], linear: set[str]) -> None:
    others = [name for name in chosen if name not in linear]
    if others:
        raise UserError(
            f"`{KEY}`: `target_modules` has {_listed(_short(others))}, which "
            f"{'is' if len(_short(others)) == 1 else 'are'} not linear: adapters go on "
            f"{_listed(_short(linear))}"
        )
    head = model.get_output_embeddings()
    tied = [name for name in chosen if model.get_submodule(name) is head]
    if tied and model.config.get_text_config().tie_word_embeddings:
        raise UserError(
            f"`{KEY}`: `target_modules` has {_listed(_short(tied))}, whose weights are the input "
            "embeddings' as well: leave it out"
        )


def _short(names: Iterable[str]) -> list[str]:
    """Returns the last part of each name, without duplicates."""
    return sorted({name.rpartition(".")[2] for name in names})


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def as_names(names: str | list[str] | None) -> Names:
    """Returns the names in the form of the configuration."""
    return names if isinstance(names, str) else tuple(names or ())


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """The rows of a micro-batch as the model takes them."""

    inputs: dict[str, Any]
    predicting: torch.Tensor
    """Columns, or places in a packed row, whose outputs predict the tokens of responses."""
    labels: torch.Tensor
    """[N, C], or [S] of a packed row."""
    row_numbers: torch.Tensor | None = None
    """The row of each label of a packed row."""
    routes: torch.Tensor | None = None
    """[T, layers, k]: experts that are chosen again at each token that the model gets."""
    token_rows: torch.Tensor | None = None
    """The row of each token that the model gets, below 0 for padding; None without packing."""
    packed: PackedRows | None = None
    shards: SequenceShards | None = None
    counts: tuple[int, ...] = ()
    """Outputs that each rank computes of a packed row that ranks share."""

    def temperatures(self, of_rows_N: torch.Tensor) -> torch.Tensor:
        """Returns each row's temperature, in a shape to divide logits by."""
        if self.row_numbers is None:
            return of_rows_N[:, None, None]
        return of_rows_N[self.row_numbers][:, None]

    def columns(self, values: torch.Tensor) -> torch.Tensor:
        """Returns values of the predicted tokens as [N, C], with those that others computed."""
        if self.packed is None:
            return values
        if self.shards is not None:
            values = self.shards.gather(values, self.counts)
        return self.packed.spread(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A teacher's distributions at the tokens of a micro-batch, in the order of its outputs."""

    teacher: TeacherTokens
    direction: Direction


class RowEngine(FSDPEngineWithLMHead):  # type: ignore[misc]  # verl carries no types
    """Rows come as `input_ids` [N, L], `lengths` and `prompt_lengths` [N], `temperature` [N].

    Its outputs have C columns, as `loss_mask` has; column c belongs to token first_token + c.
    """

    shows_top_k: int | None = None
    """In a teacher's engine: the likeliest words of each token that it keeps, 0 for all."""
    shown: TeacherTokens | None = None
    """In a teacher's engine: its distributions for the last micro-batch."""
    lesson: Lesson | None = None
    """The teacher's distributions and the divergence for the next micro-batch."""
    shares_prompts = False
    """True if rows of one prompt may compute it once."""
    replays_experts = True
    """False while the gates choose by themselves, as for a reference that shares the model."""
    balance: ExpertBalance | None = None
    """Losses of the gates of a mixture of experts, if there are any."""

    def initialize(self) -> None:
        """Builds the model, and puts the head that works in chunks into it if that is wanted."""
        with _without_verls_scaler(self):
            super().initialize()
        replay = None if self.engine_config.forward_only else ExpertReplay(self.module)
        self._replay = replay if replay is not None and replay.num_gates else None
        self._head: TokenHead | None = None
        config = self.engine_config
        if config.entropy_from_logits_with_chunking:
            layer = self.module.get_output_embeddings()
            self._head = TokenHead(layer, recomputes=config.entropy_checkpointing)

    def _build_module(self) -> PreTrainedModel:
        """Builds a vision model as it is in transformers; its tower sees no packed rows."""
        if self.model_config.hf_config.model_type not in FAMILIES:
            text: PreTrainedModel = super()._build_module()
            return text
        with unpatched():
            module: PreTrainedModel = super()._build_module()
        if self.use_remove_padding:
            module.set_attn_implementation({"vision_config": "sdpa"})
        return module

    def _build_lora_module(self, module: PreTrainedModel) -> PeftModel:
        """Checks the layers' names first, as peft ignores names that match no layer."""
        config = self.model_config
        if config.lora_adapter_path is None:
            check_layers(module, as_names(config.target_modules), as_names(config.exclude_modules))
        try:
            adapted: PeftModel = super()._build_lora_module(module)
        except RuntimeError as error:
            raise UserError(
                f"the adapter in {config.lora_adapter_path} does not fit the model: "
                f"{str(error).splitlines()[-1].strip()}"
            ) from error
        return adapted

    def is_mp_src_rank_with_outputs(self) -> bool:
        """Returns True: ranks that share sequences each have the whole result."""
        return True

    def prepare_model_inputs(self, micro_batch: TensorDict) -> ModelInputs:
        rows = _arrange(micro_batch, self.shares_prompts)
        if self._replay is not None:
            self._replay.routes_TLk = rows.routes if self.replays_experts else None
        if self.balance is not None:
            factor = self.scaler.factor if self.scaler is not None else 1.0
            self.balance.begin(_balance_rows(rows, micro_batch, factor))
        if self._head is not None:
            temperatures = rows.temperatures(micro_batch["temperature"])
            self._head.task = HeadTask(
                labels_S=rows.labels,
                temperatures_S=temperatures.squeeze(-1).expand_as(rows.labels),
                request=_request(micro_batch, self.lesson),
                teacher=self.lesson.teacher if self.lesson is not None else None,
            )
        return {**rows.inputs, "logits_to_keep": rows.predicting}, {"rows": rows}

    def prepare_model_outputs(
        self,
        output: Any,  # the output class of the loaded model
        output_args: dict[str, Any],
        micro_batch: TensorDict,
        logits_processor_func: object,
    ) -> dict[str, torch.Tensor]:
        del logits_processor_func
        rows: _Arrangement = output_args["rows"]
        if self.shows_top_k is not None:
            logits = _scaled(output.logits, rows, micro_batch)
            self.shown = TeacherTokens.of(logits.flatten(end_dim=-2), top_k=self.shows_top_k)
            return {}
        lesson, self.lesson = self.lesson, None
        if self._head is None:
            logits = _scaled(output.logits, rows, micro_batch)
            request = _request(micro_batch, lesson)
            teacher = lesson.teacher if lesson is not None else None
            values = token_outputs(logits, rows.labels, request, teacher)
        else:
            values = _from_head(self._head, output.logits)
        of_gates = self.balance.take() if self.balance is not None else {}
        return {**{name: rows.columns(value) for name, value in values.items()}, **of_gates}

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any], forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Runs verl's step, but drops its outputs, which verl would unbind by rows."""
        loss, result = super().forward_step(micro_batch, loss_function, forward_only)
        result["model_output"] = {}
        return loss, result


class RowValueEngine(FSDPEngineWithValueHead):  # type: ignore[misc]  # verl carries no types
    """The same for the critic: column c is the value of what precedes token first_token + c.

    The output is `values` [N, C].
    """

    shares_prompts = False
    """True if rows of one prompt may compute it once."""
    balance = None
    """A critic's gates are not balanced."""

    def initialize(self) -> None:
        """Builds the model."""
        with _without_verls_scaler(self):
            super().initialize()

    def is_mp_src_rank_with_outputs(self) -> bool:
        """Returns True, as of the policy's engine."""
        return True

    def prepare_model_inputs(self, micro_batch: TensorDict) -> ModelInputs:
        rows = _arrange(micro_batch, self.shares_prompts)
        return rows.inputs, {"rows": rows}

    def prepare_model_outputs(
        self,
        output: Any,  # the output class of the loaded model
        output_args: dict[str, Any],
        micro_batch: TensorDict,
        logits_processor_func: object,
    ) -> dict[str, torch.Tensor]:
        del logits_processor_func, micro_batch
        rows: _Arrangement = output_args["rows"]
        if rows.packed is None:
            first = int(rows.predicting[0])
            return {"values": output.logits[:, first:-1, 0].float()}
        return {"values": rows.columns(output.logits[0, rows.predicting, 0].float())}

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any], forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Runs verl's step, but drops its outputs, as the policy's engine does."""
        loss, result = super().forward_step(micro_batch, loss_function, forward_only)
        result["model_output"] = {}
        return loss, result


def _arrange(micro_batch: TensorDict, shares_prompts: bool) -> _Arrangement:
    tokens_NL = micro_batch["input_ids"]
    first = tensordict_utils.get_non_tensor_data(micro_batch, "first_token", default=1)
    routes_NLjk = micro_batch.get("routed_experts", None)
    images: MicroBatchImages | None
    images = tensordict_utils.get_non_tensor_data(micro_batch, IMAGES, default=None)
    if not _is_set(micro_batch, _PACKED):
        predicting_C = torch.arange(first - 1, tokens_NL.shape[1] - 1, device=tokens_NL.device)
        inputs = {"input_ids": tokens_NL, "attention_mask": None}
        if images is not None:
            inputs = images.padded(micro_batch[MODEL_IDS], micro_batch[POSITIONS])
        routes = None if routes_NLjk is None else routes_NLjk.flatten(0, 1)
        return _Arrangement(inputs, predicting_C, tokens_NL[:, first:], routes=routes)
    extents = RowExtents(
        lengths_N=micro_batch["lengths"],
        prompt_lengths_N=micro_batch["prompt_lengths"],
        first_token=first,
        num_columns=micro_batch["loss_mask"].shape[1],
        prompt_owners_N=micro_batch.get(PROMPT_OWNERS, None) if shares_prompts else None,
    )
    packed = PackedRows.from_padded(tokens_NL, extents)
    shards = SequenceShards.current()
    if shards is not None:
        return _shared(packed.padded_to_multiple(shards.size), shards, routes_NLjk)
    if images is not None:
        inputs = images.packed(packed, micro_batch[MODEL_IDS], micro_batch[POSITIONS])
    else:
        inputs = _packed_inputs(packed, packed.tokens_1T, packed.positions_1T)
    if packed.shared is not None:
        inputs[SHARED_ARGUMENT] = packed.shared
    return _Arrangement(
        inputs,
        packed.predicting_S,
        packed.labels_S,
        row_numbers=packed.rows_S,
        routes=None if routes_NLjk is None else packed.lay(routes_NLjk),
        token_rows=packed.numbers_T,
        packed=packed,
    )


@contextmanager
def _without_verls_scaler(engine: FSDPEngineWithLMHead | FSDPEngineWithValueHead) -> Iterator[None]:
    """Gives an engine that computes in float16 our scale of losses in the place of torch's.

    Torch's warns where there is no GPU.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*GradScaler is enabled, but CUDA is not.*")
        yield
    if engine.scaler is not None:
        engine.scaler = LossScale()


def _balance_rows(rows: _Arrangement, micro_batch: TensorDict, loss_factor: float) -> BalanceRows:
    rows_T = rows_of_tokens(micro_batch) if rows.token_rows is None else rows.token_rows
    return BalanceRows(
        rows_T=trained_rows(rows_T, micro_batch),
        lengths_N=micro_batch["lengths"],
        loss_factor=loss_factor,
        group=rows.shards.group if rows.shards is not None else None,
    )


def _shared(
    packed: PackedRows, shards: SequenceShards, routes_NLjk: torch.Tensor | None
) -> _Arrangement:
    """Returns this rank's part of a row that ranks share."""
    own = shards.part_of(packed)
    routes_T = None if routes_NLjk is None else packed.lay(routes_NLjk)
    inputs = _packed_inputs(packed, own.tokens_1t, own.positions_1t)
    return _Arrangement(
        inputs={**inputs, EXCHANGE_ARGUMENT: shards},
        predicting=own.predicting_s,
        labels=own.labels_s,
        row_numbers=own.rows_s,
        routes=None if routes_T is None else routes_T.chunk(shards.size)[shards.index],
        token_rows=packed.row_of_each().chunk(shards.size)[shards.index],
        packed=packed,
        shards=shards,
        counts=own.counts,
    )


def _packed_inputs(
    packed: PackedRows, tokens: torch.Tensor, positions: torch.Tensor
) -> dict[str, Any]:
    return {
        "input_ids": tokens,
        "position_ids": positions,
        "attention_mask": None,
        RUNS_ARGUMENT: packed.runs,
    }


def _scaled(logits: torch.Tensor, rows: _Arrangement, micro_batch: TensorDict) -> torch.Tensor:
    """Returns logits in float32, divided by the temperature of their row."""
    logits = (logits if rows.packed is None else logits[0]).float()
    temperature_N = micro_batch["temperature"]
    if not torch.all(temperature_N == 1.0):
        logits = logits / rows.temperatures(temperature_N)
    return logits


def _from_head(head: TokenHead, output: torch.Tensor) -> dict[str, torch.Tensor]:
    values = head.take(output)
    if values is None:
        raise UserError(
            "this model changes its logits after its head, so they cannot be computed in chunks: "
            "leave out `trainer.use_fused_kernels`, `trainer.entropy_from_logits_with_chunking` "
            "and `trainer.entropy_checkpointing`"
        )
    return values


def _request(micro_batch: TensorDict, lesson: Lesson | None) -> OutputRequest:
    return OutputRequest(
        entropy_gradient=_is_set(micro_batch, "entropy_gradient"),
        sum_pi_squared=_is_set(micro_batch, "calculate_sum_pi_squared"),
        discriminator=_is_set(micro_batch, "calculate_discriminator"),
        direction=lesson.direction if lesson is not None else None,
    )


def _is_set(micro_batch: TensorDict, name: str) -> bool:
    return bool(tensordict_utils.get_non_tensor_data(micro_batch, name, default=False))
