"""Trinity-RFT's rule of thumb for GPU memory, for comparison."""

from dataclasses import dataclass

from trinity.sizing.model_shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorSettings:
    """The inputs of the rule."""

    fsdp_size: int
    tokens: int
    is_16_bit: bool = True
    reshards: bool = True
    has_entropy: bool = False
    is_fsdp1: bool = False
    is_fused: bool = False
    is_critic: bool = False
    expands_segments: bool = False


def validator_bytes(shape: ModelShape, parameters: int, settings: ValidatorSettings) -> int:
    """Returns parameters plus the larger of activations and the optimizer's step, in bytes."""
    c = 1 if settings.is_16_bit else 2
    p, f = parameters, settings.fsdp_size
    running = 2 * c * p // (f if settings.reshards else 1) + (12 * p + 2 * c * p) // f
    if settings.is_fsdp1 and f == 1:
        running += 2 * c * p
    step = 4 * c * p // f
    t, h, v = settings.tokens, shape.hidden, shape.vocabulary
    inner = max(_logits(shape, settings), 4 * v * h + 80 * t * h)
    activations = c * (2 * t * h * (shape.layers + 4) + inner)
    return running + max(activations, step)


def validator_limit(gpu_bytes: int, settings: ValidatorSettings) -> int:
    """Returns the share of a GPU that it allows, in bytes."""
    return int(gpu_bytes * (0.9 if settings.expands_segments else 0.8))


def _logits(shape: ModelShape, settings: ValidatorSettings) -> int:
    if settings.is_critic:
        return 0
    if settings.is_fused:
        return 20480 * shape.vocabulary
    return (8 if settings.has_entropy else 10) * settings.tokens * shape.vocabulary
