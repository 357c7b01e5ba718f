"""Rows of what veRL hands to an optimizer beyond its own keys, for actor, critic and sft."""

from trinity.verl.row import (
    KeyRow,
    combined_row,
    left_out_rows,
    missing_rows,
    not_needed_rows,
    renamed_row,
)
from trinity.verl.values import identity

_ON_HOST = (
    "it affects memory and time only: `trainer.optimizer_offload` keeps the optimizer in the "
    "host's memory"
)
KEPT_EXACT = {
    "exp_avg_dtype": "keeps its moments",
    "exp_avg_sq_dtype": "keeps its moments",
    "main_params_dtype": "keeps the weights",
    "main_grads_dtype": "sums up gradients",
}
"""Dtypes that are always float32 here, each with its use in the optimizer."""


def optimizer_rows(verl: str, ours: str) -> tuple[KeyRow, ...]:
    """Rows of `eps` and of `override_optimizer_config` below veRL's section `verl`."""
    more = f"{verl}.override_optimizer_config"
    return (
        renamed_row(f"{more}.eps", f"{ours}.eps"),
        renamed_row(f"{verl}.eps", f"{ours}.eps", "VeOmni's and TorchTitan's", convert=identity),
        renamed_row(f"{more}.adam_eps", f"{ours}.eps", "Megatron's", convert=identity),
        renamed_row(f"{more}.weight_decay", f"{ours}.weight_decay", convert=identity),
        renamed_row(f"{more}.betas", f"{ours}.betas", convert=identity),
        *missing_rows(
            "AdamW's weight decay is decoupled from the gradient: give `weight_decay` 0 instead",
            f"{more}.decoupled_weight_decay",
            neutral=(True,),
        ),
        *missing_rows(
            "the optimizer is AdamW without AMSGrad", f"{more}.amsgrad", neutral=(False,)
        ),
        *(
            combined_row(f"{section}.{name}", "", f"the optimizer {doing} in float32")
            for section in (more, verl)
            for name, doing in KEPT_EXACT.items()
        ),
        combined_row(
            f"{verl}.init_lr_ratio", f"{ours}.lr_warmup_init", "times `lr`: a warm-up begins there"
        ),
        *not_needed_rows("weights are kept in float32", f"{verl}.master_weights"),
        *left_out_rows("it is about how memory holds float32", f"{verl}.store_param_remainders"),
        *left_out_rows(
            _ON_HOST,
            *(
                f"{more}.{name}"
                for name in (
                    "optimizer_cpu_offload",
                    "optimizer_offload_fraction",
                    "offload_fraction",
                    "overlap_cpu_optimizer_d2h_h2d",
                    "use_precision_aware_optimizer",
                )
            ),
        ),
        *left_out_rows(
            "it affects memory and time only",
            *(f"{more}.{name}" for name in ("fused", "foreach", "capturable")),
        ),
    )
