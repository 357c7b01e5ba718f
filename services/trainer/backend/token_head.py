"""Log-probabilities and other outputs of single tokens, from logits or, in chunks, from the head.

Shapes: S tokens in any arrangement, V tokens in the vocabulary, F outputs of each token.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trinity.algorithm.teacher_divergence import Direction, TeacherTokens, divergence_in_chunks
from trinity.config.plan.arithmetic import HEAD_CHUNK_TOKENS as CHUNK_TOKENS

DIVERGENCE = "divergence"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRequest:
    """The outputs that a micro-batch needs besides `log_probs` and `entropy`."""

    entropy_gradient: bool = False
    sum_pi_squared: bool = False
    discriminator: bool = False
    direction: Direction | None = None
    """That in which the distribution is compared with a teacher's, if it is."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all outputs, in the order in which `TokenHead` stacks them."""
        more = {
            "sum_pi_squared": self.sum_pi_squared,
            "discriminator": self.discriminator,
            DIVERGENCE: self.direction is not None,
        }
        return ("log_probs", "entropy", *(name for name, is_wanted in more.items() if is_wanted))


def token_outputs(
    logits_SV: torch.Tensor,
    labels_S: torch.Tensor,
    request: OutputRequest,
    teacher: TeacherTokens | None = None,
) -> dict[str, torch.Tensor]:
    """Computes the outputs from logits in float32, already divided by the temperature.

    A teacher has the same tokens in a row.
    """
    all_SV = torch.log_softmax(logits_SV, dim=-1)
    chosen_S = all_SV.gather(-1, labels_S[..., None]).squeeze(-1)
    has_gradient = torch.is_grad_enabled() and request.entropy_gradient
    with torch.set_grad_enabled(has_gradient):
        entropy_S = -(all_SV.exp() * all_SV).sum(-1)
    outputs = {"log_probs": chosen_S, "entropy": entropy_S}
    outputs |= _distribution_outputs(all_SV, entropy_S, request)
    if request.direction is not None and teacher is not None:
        flat_SV = all_SV.flatten(end_dim=-2)
        found_S = divergence_in_chunks(flat_SV, teacher, request.direction, size=CHUNK_TOKENS)
        outputs[DIVERGENCE] = found_S.reshape(labels_S.shape)
    return outputs


def _distribution_outputs(
    all_SV: torch.Tensor, entropy_S: torch.Tensor, request: OutputRequest
) -> dict[str, torch.Tensor]:
    """Computes what some advantages need of the whole distribution at each token.

    The entropy discriminator is the policy's mean of S = p (H + log p).
    """
    outputs = {}
    with torch.no_grad():
        if request.sum_pi_squared:
            outputs["sum_pi_squared"] = (2 * all_SV).exp().sum(-1)
        if request.discriminator:
            surprise_SV = entropy_S[..., None] + all_SV
            outputs["discriminator"] = ((2 * all_SV).exp() * surprise_SV).sum(-1)
    return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTask:
    """The labels and temperatures of the tokens that the head sees next."""

    labels_S: torch.Tensor
    temperatures_S: torch.Tensor
    request: OutputRequest
    teacher: TeacherTokens | None = None

    def teacher_parts(self) -> Iterator[TeacherTokens | None]:
        """Yields the teacher's part of each chunk."""
        if self.teacher is None:
            return repeat(None)
        return self.teacher.split(CHUNK_TOKENS)


class TokenHead:
    """Stands in for a model's output layer and computes outputs, so that logits are never whole.

    It works inside the model's own forward pass, where sharded weights are gathered.

        head = TokenHead(model.get_output_embeddings(), recomputes=True)
        head.task = HeadTask(labels_S=labels, temperatures_S=temperatures, request=request)
        output = model(...)                       # output.logits is [..., S, F]
        outputs = head.take(output.logits)        # by name, or None if the model changed them
    """

    def __init__(self, layer: nn.Module, *, recomputes: bool) -> None:
        self._project: Callable[[torch.Tensor], torch.Tensor] = layer.forward
        self._recomputes = recomputes
        self.task: HeadTask | None = None
        self._produced: torch.Tensor | None = None
        layer.forward = self._forward

    def take(self, output: torch.Tensor) -> dict[str, torch.Tensor] | None:
        """Returns the outputs of the last task, [S]; None if the model modified them.

        A model with a soft cap or a scale on its logits does so.
        """
        task, produced = self.task, self._produced
        self.task = self._produced = None
        assert task is not None
        if produced is None or output is not produced:
            return None
        columns = produced.reshape(-1, produced.shape[-1]).unbind(-1)
        shape = task.labels_S.shape
        return {
            name: column.reshape(shape)
            for name, column in zip(task.request.names, columns, strict=True)
        }

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes the task's outputs chunk by chunk; without a task, the logits."""
        if self.task is None:
            return self._project(hidden)
        task = self.task
        parts = zip(
            hidden.reshape(-1, hidden.shape[-1]).split(CHUNK_TOKENS),
            task.labels_S.reshape(-1).split(CHUNK_TOKENS),
            task.temperatures_S.reshape(-1).split(CHUNK_TOKENS),
            strict=True,
        )
        taught = zip(parts, task.teacher_parts(), strict=False)
        stacked_SF = torch.cat(
            [self._chunk(*part, task.request, lesson) for part, lesson in taught]
        )
        self._produced = stacked_SF.reshape(*hidden.shape[:-1], len(task.request.names))
        return self._produced

    def _chunk(
        self,
        hidden: torch.Tensor,
        labels_S: torch.Tensor,
        temperatures_S: torch.Tensor,
        request: OutputRequest,
        teacher: TeacherTokens | None,
    ) -> torch.Tensor:
        arguments = (hidden, labels_S, temperatures_S, request, teacher)
        if not (self._recomputes and torch.is_grad_enabled()):
            return self._outputs(*arguments)
        outputs: torch.Tensor = checkpoint(self._outputs, *arguments, use_reentrant=False)
        return outputs

    def _outputs(
        self,
        hidden: torch.Tensor,
        labels_S: torch.Tensor,
        temperatures_S: torch.Tensor,
        request: OutputRequest,
        teacher: TeacherTokens | None,
    ) -> torch.Tensor:
        logits_SV = self._project(hidden).float() / temperatures_S[:, None]
        outputs = token_outputs(logits_SV, labels_S, request, teacher)
        return torch.stack([outputs[name] for name in request.names], dim=-1)
