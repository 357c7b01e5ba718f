"""verl's engine, which takes packed rows, taught to take right-padded ones as well.

Where there is no flash attention, verl unpacks its rows again, token by token in Python. Causal
attention never looks to the right, so padding there needs no mask and costs only its own flops.
"""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


class PaddedEngine(FSDPEngineWithLMHead):  # type: ignore[misc]  # verl carries no types
    """Padded rows come as `input_ids` [B, L], `temperature` [B] and the number `first_token`.

    Their outputs have T = L - first_token columns; column t belongs to token first_token + t.
    """

    def prepare_model_inputs(
        self, micro_batch: TensorDict
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        tokens_BL = micro_batch["input_ids"]
        if tokens_BL.is_nested:
            inputs, output_args = super().prepare_model_inputs(micro_batch)
            return inputs, output_args
        first = tensordict_utils.get_non_tensor_data(micro_batch, "first_token", default=1)
        predicting_T = torch.arange(first - 1, tokens_BL.shape[1] - 1, device=tokens_BL.device)
        padded = {"input_ids": tokens_BL, "attention_mask": None, "logits_to_keep": predicting_T}
        return padded, {"labels_BT": tokens_BL[:, first:]}

    def prepare_model_outputs(
        self,
        output: Any,  # the output class of whichever model was loaded
        output_args: dict[str, Any],
        micro_batch: TensorDict,
        logits_processor_func: object,
    ) -> dict[str, torch.Tensor]:
        if "labels_BT" not in output_args:
            outputs: dict[str, torch.Tensor] = super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
            return outputs
        logits_BTV = output.logits.float()
        temperature_B = micro_batch["temperature"]
        if not torch.all(temperature_B == 1.0):
            logits_BTV = logits_BTV / temperature_B[:, None, None]
        all_BTV = torch.log_softmax(logits_BTV, dim=-1)
        chosen_BT = all_BTV.gather(-1, output_args["labels_BT"][..., None]).squeeze(-1)
        with torch.set_grad_enabled(
            torch.is_grad_enabled()
            and tensordict_utils.get_non_tensor_data(
                micro_batch, "calculate_entropy", default=False
            )
        ):
            entropy_BT = -(all_BTV.exp() * all_BTV).sum(-1)
        return {"log_probs": chosen_BT, "entropy": entropy_BT}

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any], forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """As verl's, but outputs stay with the loss function: verl would unbind them by rows."""
        loss, result = super().forward_step(micro_batch, loss_function, forward_only)
        result["model_output"] = {}
        return loss, result
