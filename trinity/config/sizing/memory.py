"""GPU memory of a role, as a sum of terms; these are estimates, not measurements."""

from dataclasses import dataclass, replace

from trinity.config.sizing.model_shape import (
    ModelShape,
    count_critic_parameters,
    count_experts,
    count_parameters,
    layer_parameters,
)

GIB = 1024**3
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
_FLOAT32_BYTES = 4
"""Bytes of float32, the type of weights, gradient sums and Adam's moments."""
_ENGINE_OVERHEAD_BYTES = int(1.5 * GIB)
"""Memory of an engine besides weights and cache: graphs, workspaces, its runtime."""
INFERENCE = "log-prob pass"
"""A pass that only computes outputs, by the policy or the reference."""
TRANSIENT = frozenset({"gathered layers", "activations", "logits", INFERENCE, "optimizer step"})
"""Terms of memory that is freed after each pass or step."""


@dataclass(frozen=True, slots=True)
class MemoryTerm:
    """One part of a role's memory on one GPU."""

    name: str
    bytes: int
    formula: str
    is_offloaded: bool = False
    """True if it is in host memory while its role is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentState:
    """The state that a role in training keeps on the GPU."""

    moments: int = 2
    """Number of moments that the optimizer keeps of each gradient."""
    offloads_parameters: bool = False
    """True if weights and gradients are offloaded while the role is idle."""
    offloads_optimizer: bool = False
    """True if the optimizer's moments are."""
    offloads_all: bool = False
    """True if everything is offloaded but the layers being computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The training settings of one rank."""

    ranks: int
    """Number of ranks that weights, gradients and moments are sharded over."""
    tokens: int
    """Tokens of one micro-batch, of all GPUs that share its sequences."""
    dtype: str
    """Type of the forward and backward passes."""
    checkpoints_activations: bool = False
    """True if a layer's activations are recomputed in the backward pass."""
    sequence_parallel: int = 1
    """GPUs that share each sequence."""
    head_tokens: int | None = None
    """Tokens whose logits exist at the same time; None is all of a micro-batch."""
    inference_tokens: int | None = None
    """Tokens of a micro-batch of passes without gradients; None is as for training."""
    inference_head_tokens: int | None = None
    """The same as `head_tokens`, of those passes."""
    longest: int = 0
    """Tokens of the longest sequence."""
    is_eager: bool = False
    """True if the user chose the attention that has all scores in memory."""
    has_entropy: bool = False
    """True if the loss has an entropy term."""
    policy: ResidentState = ResidentState()
    critic: ResidentState = ResidentState()


def policy_terms(
    shape: ModelShape, training: TrainingSettings, adapter_parameters: int | None = None
) -> list[MemoryTerm]:
    """Returns the policy's terms; with an adapter only that is trained, and the model is frozen."""
    logits = _logits(shape, training)
    parameters = count_parameters(shape)
    return [
        *_state(parameters, training, training.policy, adapter_parameters),
        _gathered(shape, training),
        *_step(parameters, training, training.policy, adapter_parameters),
        _activations(shape, training),
        logits,
        *_inference(shape, training),
    ]


def critic_terms(shape: ModelShape, training: TrainingSettings) -> list[MemoryTerm]:
    """Returns the terms of the value model, which has no logits."""
    parameters = count_critic_parameters(shape)
    return [
        *_state(parameters, training, training.critic),
        _gathered(shape, training),
        *_step(parameters, training, training.critic),
        _activations(shape, training),
    ]


def reference_terms(
    shape: ModelShape, training: TrainingSettings, *, moves: bool = False
) -> list[MemoryTerm]:
    """Returns the terms of the reference, which only infers; one that moves is in float32."""
    size = BYTES["float32" if moves else training.dtype]
    parameters = count_parameters(shape)
    weights = parameters * size // training.ranks
    passes = _inference(shape, training)
    return [
        MemoryTerm("reference weights", weights, f"{size} P / {_ranks(training)}"),
        *([_gathered(shape, training)] if passes else []),
        *passes,
    ]


def teacher_terms(shape: ModelShape, training: TrainingSettings, top_k: int) -> list[MemoryTerm]:
    """Returns the terms of a teacher; its distributions are in memory with the policy's logits."""
    size = BYTES[training.dtype]
    weights = count_parameters(shape) * size // training.ranks
    logits = 2 * _FLOAT32_BYTES * shape.vocabulary * training.tokens
    words = min(top_k or shape.vocabulary, shape.vocabulary)
    return [
        MemoryTerm("teacher weights", weights, f"{size} P / {_ranks(training)}"),
        MemoryTerm("teacher logits", logits, "8 bytes a word of each token"),
        MemoryTerm("teacher words", 12 * words * training.tokens, "12 bytes of each one kept"),
    ]


def peak_bytes(terms: list[MemoryTerm]) -> int:
    """Returns a rank's peak: passes and the optimizer step never overlap."""

    def of(*names: str) -> int:
        return sum(term.bytes for term in terms if term.name in names)

    passes = of("gathered layers") + max(of("activations", "logits"), of(INFERENCE))
    others = (term.bytes for term in terms if term.name not in TRANSIENT)
    return sum(others) + max(of("optimizer step"), passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSplit:
    """The ways in which an engine is spread over GPUs."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def copies_over(self) -> int:
        """GPUs that each copy of the weights is spread over."""
        return self.tensor * self.pipeline


def kv_bytes_per_token(
    shape: ModelShape, tensor_parallel: int, dtype: str, pipeline_parallel: int = 1
) -> int:
    """Returns the bytes of keys and values of its layers on one GPU; heads are sharded."""
    heads = -(-shape.kv_heads // tensor_parallel)
    layers = -(-shape.layers // pipeline_parallel)
    return 2 * layers * heads * shape.head_dim * BYTES[dtype]


def engine_weights(shape: ModelShape, split: EngineSplit, dtype: str) -> int:
    """Returns the bytes on one GPU; copies of the weights share the experts."""
    experts = count_experts(shape)
    dense = count_parameters(shape) - experts
    own = dense // split.copies_over + experts // (split.copies_over * split.data)
    return own * BYTES[dtype]


def engine_terms(
    shape: ModelShape, *, split: EngineSplit, dtype: str, cache_bytes: int
) -> list[MemoryTerm]:
    """Returns the terms of one GPU of an engine with `cache_bytes` of cache there."""
    gpus = split.copies_over
    formula = f"{BYTES[dtype]} P / {gpus} GPU{'s' if gpus > 1 else ''}"
    if split.data > 1 and count_experts(shape):
        formula += f", experts / {gpus * split.data}"
    return [
        MemoryTerm("weights", engine_weights(shape, split, dtype), formula),
        MemoryTerm("graphs, workspace", _ENGINE_OVERHEAD_BYTES, "about 1.5 GiB"),
        MemoryTerm("KV cache", max(cache_bytes, 0), "what is left of gpu_memory_utilization"),
    ]


def cache_room(
    shape: ModelShape, *, split: EngineSplit, dtype: str, gpu_bytes: int, utilization: float
) -> int:
    """Returns the bytes left for the cache on each GPU; below 0 where the engine does not fit."""
    weights = engine_weights(shape, split, dtype)
    return int(utilization * gpu_bytes) - weights - _ENGINE_OVERHEAD_BYTES


def _state(
    parameters: int, training: TrainingSettings, state: ResidentState, adapter: int | None = None
) -> list[MemoryTerm]:
    if state.offloads_all:
        return []
    weights = _FLOAT32_BYTES * (parameters + (adapter or 0)) // training.ranks
    learning = _FLOAT32_BYTES * (parameters if adapter is None else adapter) // training.ranks
    ranks, rests = _ranks(training), state.offloads_parameters
    whole, part = ("P", "P") if adapter is None else ("(P + A)", "A")
    terms = [
        MemoryTerm("weights", weights, f"4 {whole} / {ranks}, float32", rests),
        MemoryTerm("gradients", learning, f"4 {part} / {ranks}, float32", rests),
    ]
    if state.moments:
        size, formula = state.moments * learning, f"8 {part} / {ranks}, Adam's two moments"
        terms.append(MemoryTerm("optimizer", size, formula, state.offloads_optimizer))
    return terms


def _ranks(training: TrainingSettings) -> str:
    return f"{training.ranks} rank{'s' if training.ranks > 1 else ''}"


def _gathered(shape: ModelShape, training: TrainingSettings) -> MemoryTerm:
    """Sizes the gathered layers: FSDP holds the current layer whole, and prefetches the next."""
    size = BYTES[training.dtype]
    layers = 2 * layer_parameters(shape) * size
    embeddings = shape.vocabulary * shape.hidden * size * (1 if shape.is_tied else 2)
    return MemoryTerm("gathered layers", layers + embeddings, f"{size} (2 layers + embeddings)")


def _step(
    parameters: int, training: TrainingSettings, state: ResidentState, adapter: int | None = None
) -> list[MemoryTerm]:
    if state.offloads_all:
        return []
    size = _FLOAT32_BYTES * (parameters if adapter is None else adapter) // training.ranks
    return [
        MemoryTerm(
            "optimizer step", size, f"4 {'P' if adapter is None else 'A'} / {_ranks(training)}"
        )
    ]


def _activations(shape: ModelShape, training: TrainingSettings) -> MemoryTerm:
    """Sizes one input per layer where layers are recomputed, else all that backward reads."""
    size = BYTES[training.dtype]
    tokens = -(-training.tokens // training.sequence_parallel)
    of_layer = _layer_activations(shape, training)
    of_tower, told = _tower_activations(shape, training)
    if training.checkpoints_activations:
        kept = tokens * (shape.hidden * size * (shape.layers + 4) + of_layer + of_tower)
        formula = f"{size} T H (L + 4) + one layer{told}, T = {tokens}"
        return MemoryTerm("activations", kept, formula)
    kept = tokens * (shape.layers * of_layer + of_tower)
    return MemoryTerm("activations", kept, f"{of_layer} bytes T L{told}, T = {tokens}")


def _tower_activations(shape: ModelShape, training: TrainingSettings) -> tuple[int, str]:
    """Returns the bytes of the vision tower per token of a micro-batch, and their formula.

    At most half of the tokens by which micro-batches are cut are patches of the tower, as each
    token of an image counts there and in the language part.
    """
    tower, size = shape.tower, BYTES[training.dtype]
    if tower is None:
        return 0, ""
    of_layer = size * (12 * tower.width + 4 * tower.feed_forward)
    kept = tower.layers * (size * tower.width if training.checkpoints_activations else of_layer)
    of_token = tower.merged * (kept + (of_layer if training.checkpoints_activations else 0)) // 2
    return of_token, f" + {of_token} bytes T of the vision tower"


def _inference(shape: ModelShape, training: TrainingSettings) -> list[MemoryTerm]:
    """Sizes a no-grad pass if it has more tokens than a training pass.

    Only the layer being computed is kept. Logits take as much as in training: the terms of the
    entropy take as much memory as the gradients.
    """
    tokens = training.inference_tokens
    if tokens is None or tokens <= training.tokens:
        return []
    own = replace(training, tokens=tokens, head_tokens=training.inference_head_tokens)
    each = _layer_activations(shape, training)
    of_rank, logits = -(-tokens // training.sequence_parallel), _logits(shape, own)
    formula = f"{each} bytes T + logits without gradients, T = {of_rank}"
    return [MemoryTerm(INFERENCE, of_rank * each + logits.bytes, formula)]


def _layer_activations(shape: ModelShape, training: TrainingSettings) -> int:
    """Returns the bytes per token of one layer.

    Two norms with their float32 copies and outputs, queries, keys and values before and after
    rotation, attention's output, two residuals, and four of the feed-forward part's width. Where
    scores are in memory: three copies of each, its weight in float32 and the gradient of that.
    """
    size, scores = BYTES[training.dtype], 0
    if shape.keeps_scores or training.is_eager:
        scores = shape.heads * training.longest * (3 * size + 2 * _FLOAT32_BYTES)
    width = shape.feed_forward
    if shape.experts is not None and shape.sparse_layers:
        width = shape.experts.per_token * shape.experts.width + shape.experts.shared_width
    attention = 3 * shape.query_width + 4 * shape.kv_width
    dense = size * (4 * shape.hidden + attention + 4 * width) + 2 * _FLOAT32_BYTES * shape.hidden
    return dense + scores


def _logits(shape: ModelShape, training: TrainingSettings) -> MemoryTerm:
    """Sizes the logits, their float32 copy and log-softmax, and the gradients of the two.

    Packed and padded rows have the same number of tokens, the limit of a micro-batch.
    """
    tokens = -(-training.tokens // training.sequence_parallel)
    if training.head_tokens is not None and not shape.changes_logits:
        tokens = min(tokens, training.head_tokens)
    size = BYTES[training.dtype] + 4 * _FLOAT32_BYTES
    formula = f"{size} bytes T V, V = {shape.vocabulary}"
    return MemoryTerm("logits", tokens * size * shape.vocabulary, formula)
