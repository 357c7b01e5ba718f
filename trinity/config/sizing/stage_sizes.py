"""GPU memory of a stage's ranks and engines, advice where it is short, settings that save it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trinity.algorithm.token_advantage import needs_of
from trinity.config.plan.arithmetic import HEAD_CHUNK_TOKENS, head_settings, is_eager
from trinity.config.plan.model import local_model_directory
from trinity.config.plan.sizes import critic_rows, inference_rows, policy_rows
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.explorer import EngineConfig
from trinity.config.sizing.memory import (
    GIB,
    TRANSIENT,
    EngineSplit,
    MemoryTerm,
    ResidentState,
    TrainingSettings,
    cache_room,
    critic_terms,
    engine_terms,
    engine_weights,
    kv_bytes_per_token,
    peak_bytes,
    policy_terms,
    reference_terms,
    teacher_terms,
)
from trinity.config.sizing.model_shape import ModelShape, count_adapter, read_shape
from trinity.errors import UserError

MARKS = ("out of memory", "outofmemory", "kv cache", "free memory on device", "bad_alloc")
"""Parts of the texts with which torch, vLLM and the allocator say that memory ran out."""
UTILIZATION_STEP = 0.1
LEAST_UTILIZATION = 0.2
HALVED_SEQUENCES = 128
"""`max_num_seqs` to begin with where none is set."""
MOMENTS = {"adam": 2, "sgd": 0}
"""By type of optimizer."""
USABLE = 0.8
"""Share of a GPU: the rest is for the driver, the allocator and fragmentation."""
_TOKEN_STEP = 256
_OF_ACTOR = frozenset({"entropies", "collision", "discriminator", "teacher"})
"""Needs of advantages for which the actor computes a pass before the step."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns true for an error of torch, vLLM or Python that says that memory ran out."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    text = str(error).lower()
    return is_named or any(mark in text for mark in MARKS)


def trainer_remedies(plan: StagePlan) -> str:
    """Returns what may help this stage's trainer, numbered, the cheapest first."""
    return _numbered(_of_trainer(plan))


def engine_remedies(rollout: EngineConfig, max_len: int) -> str:
    """Returns what may help an engine, numbered, the cheapest first."""
    return _numbered(_of_engine(rollout, max_len))


def _numbered(remedies: Iterator[str]) -> str:
    return "; ".join(f"({number}) {remedy}" for number, remedy in enumerate(remedies, 1))


def _of_trainer(plan: StagePlan) -> Iterator[str]:
    trainer, sharing = plan.config.trainer, plan.sequence_parallel_size
    longest = -(-plan.max_model_len // sharing)
    if (rows := policy_rows(plan)) is not None:
        if rows > 1:
            yield f"`trainer.ppo_micro_batch_size_per_gpu: {rows // 2}` (now {rows})"
    elif (tokens := plan.max_token_len_per_gpu) > longest:
        yield (
            f"`trainer.max_token_len_per_gpu: {max(tokens // 2, longest)}` (now {tokens}, and a "
            f"sequence has up to {longest} tokens{' on each GPU' if sharing > 1 else ''})"
        )
    training = training_settings_of(plan)
    if (training.inference_tokens or 0) > training.tokens:
        yield f"`{_inference_key(plan)}` left out, so that all passes have training's limit"
    if not plan.recomputes_activations:
        yield "`trainer.enable_gradient_checkpointing: true`, for about a third more time"
    if not (trainer.optimizer_offload or trainer.offload_policy):
        yield "`trainer.optimizer_offload: true`"
    if not (trainer.param_offload or trainer.offload_policy):
        yield "`trainer.param_offload: true`"
    if not trainer.offload_policy:
        yield "`trainer.offload_policy: true`, which keeps only the layers that compute"
    ranks = plan.trainer_rank_num
    if ranks % (2 * sharing) == 0:
        yield (
            f"`trainer.ulysses_sequence_parallel_size: {2 * sharing}` (now {sharing}), with which "
            "ranks share each sequence"
        )
    if plan.takes_turns:
        yield "`mode: both` with a GPU for the engine and more for the trainer (`trainer.rank_num`)"
    else:
        yield f"more GPUs for the trainer (`trainer.rank_num`, now {ranks}), which share it"
    yield (
        f"shorter answers: `model.max_response_tokens` (now {plan.max_response_tokens}), which "
        "changes the experiment"
    )


def _of_engine(rollout: EngineConfig, max_len: int) -> Iterator[str]:
    used = rollout.gpu_memory_utilization
    lower = round(max(used - UTILIZATION_STEP, LEAST_UTILIZATION), 2)
    if lower < used:
        yield (
            f"`gpu_memory_utilization: {lower:g}` (now {used:g}) where others use the GPU, or more "
            "than now where the cache is too small"
        )
    number = rollout.extra_engine_args.get("max_num_seqs")
    if not isinstance(number, int):
        yield f"`extra_engine_args: {{max_num_seqs: {HALVED_SEQUENCES}}}`"
    elif number > 1:
        yield f"`extra_engine_args: {{max_num_seqs: {number // 2}}}` (now {number})"
    if not rollout.enforce_eager:
        yield "`enforce_eager: true`, which keeps no compiled graphs"
    size = rollout.tensor_parallel_size
    yield f"`tensor_parallel_size: {2 * size}` (now {size}), which spreads the weights over GPUs"
    yield f"shorter sequences: `model.max_model_len` (now {max_len})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of one training process."""

    terms: tuple[tuple[str, tuple[MemoryTerm, ...]], ...]
    """By role."""

    @property
    def total(self) -> int:
        """Peak bytes: all roles keep their state at the same time, but pass one after another."""
        kept, most = 0, 0
        for _, terms in self.terms:
            own = [t for t in terms if t.name in TRANSIENT]
            state = [t for t in terms if t not in own]
            kept += sum(t.bytes for t in state if not t.is_offloaded)
            back = sum(t.bytes for t in state if t.is_offloaded)
            most = max(most, back + peak_bytes(own))
        return kept + most


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Memory of one GPU of a rollout engine."""

    terms: tuple[MemoryTerm, ...]
    room: int
    """Bytes for the cache; below 0 the engine does not start."""
    cached_tokens: int
    """Tokens in the cache of the whole engine."""


def local_shape(model_path: str, model_config: Path | None = None) -> ModelShape | None:
    """Returns the shape of a model; None where this machine has no `config.json` of it."""
    if model_config is not None:
        return read_shape(model_config)
    try:
        directory = local_model_directory(model_path)
    except UserError:
        return None
    file = None if directory is None else directory / "config.json"
    return read_shape(file) if file is not None and file.exists() else None


def training_settings_of(stage: StagePlan) -> TrainingSettings:
    """Returns the training settings of one rank of the stage."""
    trainer = stage.config.trainer
    coefficient = stage.algorithm.entropy_loss_fn_args.get("entropy_coef", 0.0)
    head = head_settings(trainer)
    return TrainingSettings(
        has_entropy=stage.algorithm.entropy_loss_fn != "none" and coefficient != 0,
        ranks=_shards(stage),
        policy=_policy_state(stage),
        critic=_critic_state(stage),
        tokens=_tokens(stage, stage.max_token_len_per_gpu, policy_rows(stage)),
        dtype=trainer.dtype,
        checkpoints_activations=stage.recomputes_activations,
        head_tokens=HEAD_CHUNK_TOKENS if head.recomputes else None,
        inference_tokens=_inference_tokens(stage),
        inference_head_tokens=HEAD_CHUNK_TOKENS if head.is_chunked else None,
        sequence_parallel=stage.sequence_parallel_size,
        longest=stage.max_model_len,
        is_eager=is_eager(trainer.override_config),
    )


def _tokens(stage: StagePlan, of_rank: int, rows: int | None) -> int:
    """Returns the tokens of the largest micro-batch, of all GPUs that share its sequences."""
    if rows is not None:
        return max(rows * stage.max_model_len, stage.longest_unit)
    return max(of_rank * stage.sequence_parallel_size, stage.longest_unit)


def _inference_tokens(stage: StagePlan) -> int | None:
    """Returns the tokens of no-grad passes; None if they have no separate limit."""
    own = stage.config.trainer.log_prob_max_token_len_per_gpu or 0
    return _tokens(stage, own, inference_rows(stage)) if _inference_key(stage) else None


def _inference_key(stage: StagePlan) -> str | None:
    """Returns the key that the user gives the micro-batches of passes without gradients by."""
    is_by_tokens = inference_rows(stage) is None
    key = f"log_prob_{'max_token_len' if is_by_tokens else 'micro_batch_size'}_per_gpu"
    return f"trainer.{key}" if getattr(stage.config.trainer, key) else None


def _of_actor(stage: StagePlan, training: TrainingSettings) -> TrainingSettings:
    """Returns the actor's settings, with no-grad passes only if they are needed."""
    algorithm = stage.algorithm
    asks = algorithm.advantage_in_trainer and _OF_ACTOR & needs_of(algorithm.advantage_fn)
    computes = stage.has_rollouts and (algorithm.needs_proximal or asks)
    is_reference = stage.needs_reference and stage.lora is not None
    return training if computes or is_reference else replace(training, inference_tokens=None)


def _of_critic(stage: StagePlan, training: TrainingSettings) -> TrainingSettings:
    """Returns the critic's settings: its own micro-batches, where it has any."""
    critic, rows = stage.config.trainer.critic, critic_rows(stage)
    tokens = training.tokens
    if rows is not None and critic.ppo_micro_batch_size_per_gpu is not None:
        tokens = _tokens(stage, 0, rows)
    elif rows is None and critic.max_token_len_per_gpu is not None:
        tokens = _tokens(stage, critic.max_token_len_per_gpu, None)
    recomputes, eager = stage.critic_recomputes_activations, is_eager(critic.override_config)
    return replace(training, tokens=tokens, checkpoints_activations=recomputes, is_eager=eager)


def _shards(stage: StagePlan) -> int:
    """Returns the number of ranks that the weights are sharded over."""
    size = stage.config.trainer.fsdp_size
    return min(size, stage.trainer_rank_num) if size > 0 else stage.trainer_rank_num


def _policy_state(stage: StagePlan) -> ResidentState:
    trainer = stage.config.trainer
    return ResidentState(
        moments=MOMENTS[stage.config.algorithm.optimizer.optimizer_type],
        offloads_parameters=trainer.param_offload,
        offloads_optimizer=trainer.optimizer_offload,
        offloads_all=trainer.offload_policy,
    )


def _critic_state(stage: StagePlan) -> ResidentState:
    """Returns the policy's settings, with the critic's own where it has any."""
    trainer, critic = stage.config.trainer, stage.config.trainer.critic
    parameters, optimizer = critic.param_offload, critic.optimizer_offload
    return ResidentState(
        moments=MOMENTS[critic.optimizer.optimizer_type],
        offloads_parameters=trainer.param_offload if parameters is None else parameters,
        offloads_optimizer=trainer.optimizer_offload if optimizer is None else optimizer,
        offloads_all=trainer.offload_policy,
    )


def rank_memory(
    stage: StagePlan,
    shape: ModelShape,
    critic: ModelShape | None,
    training: TrainingSettings | None = None,
    teacher: ModelShape | None = None,
) -> RankMemory:
    """Returns the memory of the actor, and of the other models that the algorithm has.

    With an adapter the reference is the actor without it.
    """
    training = training or training_settings_of(stage)
    adapter = count_adapter(shape, stage.lora) if stage.lora else None
    roles = [("actor", tuple(policy_terms(shape, _of_actor(stage, training), adapter)))]
    if stage.needs_reference and stage.lora is None:
        roles.append(
            ("reference", tuple(reference_terms(shape, training, moves=stage.moves_reference)))
        )
    if stage.needs_critic:
        roles.append(("critic", tuple(critic_terms(critic or shape, _of_critic(stage, training)))))
    if stage.teacher_model_path is not None:
        top_k = stage.config.algorithm.distillation.top_k
        roles.append(("teacher", tuple(teacher_terms(teacher or shape, training, top_k))))
    return RankMemory(terms=tuple(roles))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMemory:
    """Bytes of the host's memory that wait for a turn on the GPU."""

    trainer: int
    engine: int
    """0 at the level of sleep after which weights are loaded again."""


def turn_memory(stage: StagePlan, shape: ModelShape, critic: ModelShape | None) -> TurnMemory:
    """Returns what engine and trainer have in the host's memory while the other has the GPU."""
    kept = ("weights", "optimizer", "reference weights")
    trainer = sum(
        term.bytes
        for _, terms in rank_memory(stage, shape, critic).terms
        for term in terms
        if term.name in kept
    )
    rollout = stage.config.explorer.rollout_model
    is_kept = rollout.sleep_level == 1
    engine = engine_weights(shape, _split_of(rollout), rollout.dtype) if is_kept else 0
    return TurnMemory(trainer=trainer, engine=engine)


def engine_memory(engine: EngineConfig, shape: ModelShape, gpu_bytes: int) -> EngineMemory:
    """Returns the memory of an engine, of the policy or of another model, on such GPUs."""
    split = _split_of(engine)
    room = cache_room(
        shape,
        split=split,
        dtype=engine.dtype,
        gpu_bytes=gpu_bytes,
        utilization=engine.gpu_memory_utilization,
    )
    a_token = kv_bytes_per_token(shape, split.tensor, engine.dtype, split.pipeline)
    terms = engine_terms(shape, split=split, dtype=engine.dtype, cache_bytes=room)
    cached = split.data * (max(room, 0) // a_token)
    return EngineMemory(terms=tuple(terms), room=room, cached_tokens=cached)


def _split_of(engine: EngineConfig) -> EngineSplit:
    return EngineSplit(
        tensor=engine.tensor_parallel_size,
        pipeline=engine.pipeline_parallel_size,
        data=engine.data_parallel_size,
    )


def rank_advice(
    stage: StagePlan,
    shape: ModelShape,
    critic: ModelShape | None,
    gpu_bytes: int,
    teacher: ModelShape | None = None,
) -> str:
    """Returns one sentence: fewer tokens at a time if that is enough, else more ranks."""
    limit = int(USABLE * gpu_bytes)
    training = training_settings_of(stage)

    def fits(candidate: TrainingSettings) -> bool:
        return rank_memory(stage, shape, critic, candidate, teacher).total <= limit

    smaller = list(_smaller_micro_batches(stage, training.tokens))
    for candidate, words in _candidates(stage, training, smaller):
        if fits(candidate):
            return words
    tokens, setting = smaller[-1] if smaller else (training.tokens, "")
    least = replace(training, tokens=tokens, inference_tokens=None)
    for ranks in _larger_groups(stage, training.ranks):
        if fits(replace(least, ranks=ranks)):
            given = f" with `{setting}`" if setting else ""
            given += f" and without `{key}`" if (key := _inference_key(stage)) else ""
            return _more_gpus(stage, ranks) + given
    return "shorten `model.max_model_len`, or take a smaller model or larger GPUs"


def _candidates(
    stage: StagePlan, training: TrainingSettings, smaller: Sequence[tuple[int, str]]
) -> Iterator[tuple[TrainingSettings, str]]:
    """Yields settings of less memory and the words for them, those that cost the least first."""
    followed = replace(training, inference_tokens=None)
    key = _inference_key(stage)
    if key is not None:
        yield followed, f"leave out `{key}`"
    for tokens, setting in smaller:
        yield replace(training, tokens=tokens), f"set `{setting}`"
    for tokens, setting in smaller if key is not None else ():
        yield replace(followed, tokens=tokens), f"set `{setting}` and leave out `{key}`"


def _smaller_micro_batches(stage: StagePlan, tokens: int) -> Iterator[tuple[int, str]]:
    """Yields tokens of smaller micro-batches with the setting that makes them, the largest first.

    The last is of the longest sequence alone.
    """
    least, sharing = stage.longest_unit, stage.sequence_parallel_size
    if (rows := policy_rows(stage)) is not None:
        for fewer in range(rows - 1, 0, -1):
            most = max(fewer * stage.max_model_len, least)
            yield most, f"trainer.ppo_micro_batch_size_per_gpu: {fewer}"
        return
    for most in range((tokens - 1) // _TOKEN_STEP * _TOKEN_STEP, least, -_TOKEN_STEP):
        yield most, f"trainer.max_token_len_per_gpu: {-(-most // sharing)}"
    if least < tokens:
        yield least, f"trainer.max_token_len_per_gpu: {-(-least // sharing)}"


def _larger_groups(stage: StagePlan, size: int) -> Iterator[int]:
    """Yields more ranks to shard over: those that are there, then more of them."""
    ranks = stage.trainer_rank_num
    yield from (more for more in range(size + 1, ranks + 1) if ranks % more == 0)
    yield from (ranks * 2**i for i in range(1, 8))


def _more_gpus(stage: StagePlan, ranks: int) -> str:
    """Names what shards over so many ranks: those of one machine, or of whole ones."""
    node = stage.config.cluster.gpu_per_node
    if ranks <= stage.trainer_rank_num:
        return f"shard over {ranks} ranks (`trainer.fsdp_size`)"
    if stage.takes_turns:
        return f"train on {ranks} GPUs, which takes `mode: both` and a GPU more for the engine"
    if ranks <= node or stage.config.cluster.node_num == 1:
        return f"train on {ranks} GPUs of one machine (`cluster.gpu_per_node`)"
    whole = -(-ranks // node)
    return f"train on {whole * node} GPUs, {whole} whole machines (`cluster.node_num`)"


def engine_advice(stage: StagePlan, shape: ModelShape, gpu_bytes: int, wanted: int) -> str:
    """Returns one sentence: a larger share of the GPU if enough, else more GPUs per engine.

    `wanted` is the number of bytes for the cache on all GPUs of an engine together.
    """
    rollout = stage.config.explorer.rollout_model
    own = rollout.tensor_parallel_size
    for size, share in (
        *((own, share) for share in (0.85, 0.9, 0.95)),
        *((2**i * own, 0.9) for i in range(1, 5)),
    ):
        split = replace(_split_of(rollout), tensor=size)
        room = cache_room(
            shape, split=split, dtype=rollout.dtype, gpu_bytes=gpu_bytes, utilization=share
        )
        if room * split.copies_over >= wanted and share >= rollout.gpu_memory_utilization:
            if size == own:
                return f"set `explorer.rollout_model.gpu_memory_utilization: {share}`"
            return f"set `explorer.rollout_model.tensor_parallel_size: {size}`"
    return f"take a smaller model, or GPUs of more than {gpu_bytes // GIB} GiB"


def validator_bytes(stage: StagePlan, shape: ModelShape, parameters: int) -> int:
    """Returns the bytes of a rank by Trinity-RFT's validator, which allows `USABLE` of a GPU.

    Parameters, and the larger of activations and the optimizer's step.
    """
    training = training_settings_of(stage)
    size = 2 if training.dtype == "float32" else 1
    ranks = training.ranks
    running = 2 * size * parameters // ranks + (12 + 2 * size) * parameters // ranks
    tokens, hidden, words = training.tokens, shape.hidden, shape.vocabulary
    logits = (8 if training.has_entropy else 10) * tokens * words
    inner = max(logits, 4 * words * hidden + 80 * tokens * hidden)
    activations = size * (2 * tokens * hidden * (shape.layers + 4) + inner)
    return running + max(activations, 4 * size * parameters // ranks)
