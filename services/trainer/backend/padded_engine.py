"""verl's engines for padded rows, and the check of the layers that get an adapter."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from peft import PeftModel
from tensordict import TensorDict
from torch import nn
from transformers import PreTrainedModel
from verl.utils import tensordict_utils
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from trinity.config.schema.model import ALL_LINEAR, Names
from trinity.errors import UserError

KEY = "model.lora_configs"


class PaddedEngine(FSDPEngineWithLMHead):  # type: ignore[misc]  # verl carries no types
    """Padded rows come as `input_ids` [N, L], `temperature` [N] and the number `first_token`.

    Their outputs have C = L - first_token columns; column c belongs to token first_token + c.
    """

    def _build_lora_module(self, module: PreTrainedModel) -> PeftModel:
        """Checks the layers' names first, as peft ignores names that match no layer."""
        config = self.model_config
        if config.lora_adapter_path is None:
            check_layers(
                module, _as_names(config.target_modules), _as_names(config.exclude_modules)
            )
        try:
            adapted: PeftModel = super()._build_lora_module(module)
        except RuntimeError as error:
            raise UserError(
                f"the adapter in {config.lora_adapter_path} does not fit the model: "
                f"{str(error).splitlines()[-1].strip()}"
            ) from error
        return adapted

    def prepare_model_inputs(
        self, micro_batch: TensorDict
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        tokens_NL = micro_batch["input_ids"]
        if tokens_NL.is_nested:
            inputs, output_args = super().prepare_model_inputs(micro_batch)
            return inputs, output_args
        first = tensordict_utils.get_non_tensor_data(micro_batch, "first_token", default=1)
        predicting_C = torch.arange(first - 1, tokens_NL.shape[1] - 1, device=tokens_NL.device)
        padded = {"input_ids": tokens_NL, "attention_mask": None, "logits_to_keep": predicting_C}
        return padded, {"labels_NC": tokens_NL[:, first:]}

    def prepare_model_outputs(
        self,
        output: Any,  # the output class of the loaded model
        output_args: dict[str, Any],
        micro_batch: TensorDict,
        logits_processor_func: object,
    ) -> dict[str, torch.Tensor]:
        if "labels_NC" not in output_args:
            outputs: dict[str, torch.Tensor] = super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
            return outputs
        logits_NCV = output.logits.float()
        temperature_N = micro_batch["temperature"]
        if not torch.all(temperature_N == 1.0):
            logits_NCV = logits_NCV / temperature_N[:, None, None]
        return _token_outputs(logits_NCV, output_args["labels_NC"], micro_batch)

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any], forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Runs verl's step, but drops its outputs, which verl would unbind by rows."""
        loss, result = super().forward_step(micro_batch, loss_function, forward_only)
        result["model_output"] = {}
        return loss, result


class PaddedValueEngine(FSDPEngineWithValueHead):  # type: ignore[misc]  # verl carries no types
    """The same for the critic: column c is the value of what precedes token first_token + c.

    The output is `values` [N, C].
    """

    def prepare_model_inputs(
        self, micro_batch: TensorDict
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        tokens_NL = micro_batch["input_ids"]
        if tokens_NL.is_nested:
            inputs, output_args = super().prepare_model_inputs(micro_batch)
            return inputs, output_args
        return {"input_ids": tokens_NL, "attention_mask": None}, {}

    def prepare_model_outputs(
        self,
        output: Any,  # the output class of the loaded model
        output_args: dict[str, Any],
        micro_batch: TensorDict,
        logits_processor_func: object,
    ) -> dict[str, torch.Tensor]:
        if micro_batch["input_ids"].is_nested:
            outputs: dict[str, torch.Tensor] = super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
            return outputs
        first = tensordict_utils.get_non_tensor_data(micro_batch, "first_token", default=1)
        return {"values": output.logits[:, first - 1 : -1, 0].float()}

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any], forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Runs verl's step, but drops its outputs, as the policy's engine does."""
        loss, result = super().forward_step(micro_batch, loss_function, forward_only)
        result["model_output"] = {}
        return loss, result


def _token_outputs(
    logits_NCV: torch.Tensor, labels_NC: torch.Tensor, micro_batch: TensorDict
) -> dict[str, torch.Tensor]:
    all_NCV = torch.log_softmax(logits_NCV, dim=-1)
    chosen_NC = all_NCV.gather(-1, labels_NC[..., None]).squeeze(-1)
    has_gradient = torch.is_grad_enabled() and _is_set(micro_batch, "entropy_gradient")
    with torch.set_grad_enabled(has_gradient):
        entropy_NC = -(all_NCV.exp() * all_NCV).sum(-1)
    return {"log_probs": chosen_NC, "entropy": entropy_NC} | _distribution_outputs(
        all_NCV, entropy_NC, micro_batch
    )


def _distribution_outputs(
    all_NCV: torch.Tensor, entropy_NC: torch.Tensor, micro_batch: TensorDict
) -> dict[str, torch.Tensor]:
    """Computes what some advantages need of the whole distribution at each token.

    The entropy discriminator is the policy's mean of S = p (H + log p).
    """
    outputs = {}
    with torch.no_grad():
        if _is_set(micro_batch, "calculate_sum_pi_squared"):
            outputs["sum_pi_squared"] = (2 * all_NCV).exp().sum(-1)
        if _is_set(micro_batch, "calculate_discriminator"):
            surprise_NCV = entropy_NC[..., None] + all_NCV
            outputs["discriminator"] = ((2 * all_NCV).exp() * surprise_NCV).sum(-1)
    return outputs


def _as_names(names: str | list[str] | None) -> Names:
    return names if isinstance(names, str) else tuple(names or ())


def _is_set(micro_batch: TensorDict, name: str) -> bool:
    return bool(tensordict_utils.get_non_tensor_data(micro_batch, name, default=False))


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
            f"`{KEY}`: `exclude_modules` leaves nothing of `target_modules` to adapt: exclude less"
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
