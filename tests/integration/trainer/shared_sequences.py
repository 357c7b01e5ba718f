"""A step of ranks that share each sequence, with what comes of it token by token."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from transformers import CONFIG_MAPPING

from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import gradients_of
from tests.unit.trainer.builders import (
    make_plan,
    random_batch,
    random_pairs,
    save_tiny_mixture,
    save_tiny_model,
)
from tests.unit.trainer.model_kinds import save_model, settings_of

if TYPE_CHECKING:
    import torch

    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

GRPO = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "k2"}
TOKENS_OF_A_MICRO_BATCH = 64
OUTPUTS = ("logprobs", "entropies")


@dataclass(frozen=True, kw_only=True)
class SharedCase:
    """Training in which two ranks share sequences."""

    algorithm: Mapping[str, object] = field(default_factory=lambda: GRPO)
    trainer: Mapping[str, object] = field(default_factory=dict)
    num_kv_heads: int = 2
    is_mixture: bool = False
    model_kind: str | None = None
    batch: TrainBatch = field(default_factory=lambda: random_batch(9, seed=4))

    @property
    def has_experts(self) -> bool:
        return self.is_mixture or self.model_kind == "gpt_oss"

    def build(self, model: Path, ranks: "Ranks", num_sharing: int) -> "Learner":
        from services.trainer.learner.learner import Learner

        kind = "mixture" if self.is_mixture else self.model_kind or f"{self.num_kv_heads}_heads"
        own = model.with_name(f"{model.name}_{kind}_{ranks.rank}")
        if not own.is_dir() and self.is_mixture:
            save_tiny_mixture(own)
        elif not own.is_dir() and self.model_kind is not None:
            save_model(own, CONFIG_MAPPING[self.model_kind](**settings_of(self.model_kind)))
        elif not own.is_dir():
            save_tiny_model(own, num_kv_heads=self.num_kv_heads)
        trainer = {
            "rank_num": num_sharing,
            "ulysses_sequence_parallel_size": num_sharing,
            "max_token_len_per_gpu": TOKENS_OF_A_MICRO_BATCH // num_sharing,
            "use_prefix_grouper": False,  # as ranks that share sequences have each row whole
            **self.trainer,
        }
        plan = make_plan(own, self.algorithm, trainer)
        return Learner(plan=plan, model_directory=own, ranks=ranks)


SHARED_CASES = {
    "actor and reference": SharedCase(),
    "critic": SharedCase(algorithm={"algorithm_type": "ppo"}),
    "one head of keys": SharedCase(num_kv_heads=1),
    "computed again": SharedCase(
        trainer={"enable_gradient_checkpointing": True, "use_fused_kernels": True},
        algorithm={**GRPO, "entropy_loss_fn_args": {"entropy_coef": 0.1}},
    ),
    "balanced experts": SharedCase(
        algorithm={**GRPO, "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.1}, is_mixture=True
    ),
    "soft caps and windows": SharedCase(model_kind="gemma2"),
    "sinks": SharedCase(model_kind="gpt_oss"),
    "pairs": SharedCase(algorithm={"algorithm_type": "dpo"}, batch=random_pairs(5, seed=3)),
    "fewer tokens than ranks see": SharedCase(batch=random_batch(1, seed=6, max_response=2)),
}
Arrays = dict[str, npt.NDArray[np.float64]]


def step_arrays(case: SharedCase, model: Path, ranks: "Ranks", num_sharing: int) -> Arrays:
    """Outputs before a step for each token, then its gradients and sums of the whole batch."""
    from services.trainer.learner.prepared_batch import PreparedBatch

    learner = case.build(model, ranks, num_sharing)
    actor = learner._roles.actor
    outputs = actor.compute_outputs(PreparedBatch.from_batch(case.batch), OUTPUTS)
    found: Arrays = {f"output/{name}": array for name, array in outputs.items()}
    gradients = gradients_of(learner, case.batch)
    found |= {f"gradient/{name}": array.astype(np.float64) for name, array in gradients.items()}
    metrics = learner.train_step(case.batch, 0.0, 0.0).metrics
    names = ["actor/loss", "perf/busiest_rank", "perf/num_micro_batches"]
    names += [name for name in metrics if name.startswith("actor/router_")]
    return found | {f"metric/{name}": np.array(metrics[name]) for name in names}


@contextmanager
def parts_in_the_wrong_order() -> Iterator[None]:
    """The defect of the control: each rank takes its own part of a row for the last one."""
    from services.trainer.backend.sequence_shards import SequenceShards

    sound = SequenceShards.scatter_heads

    def swapped(self: SequenceShards, tensors: Sequence["torch.Tensor"]) -> list["torch.Tensor"]:
        whole = sound(self, tensors)
        return [tensor.roll(tensor.shape[1] // self.size, dims=1) for tensor in whole]

    SequenceShards.scatter_heads = swapped  # type: ignore[method-assign]
    try:
        yield
    finally:
        SequenceShards.scatter_heads = sound  # type: ignore[method-assign]
