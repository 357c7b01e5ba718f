"""vLLM's AsyncLLM as the rollout engine."""

import asyncio
import gc
import itertools
import logging
import multiprocessing
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from services.explorer.engine.images import check_expansion, request_of
from services.explorer.engine.in_flight import unless_cancelled
from services.explorer.engine.interface import DeviceRequest, EngineDied, EngineOptions
from services.explorer.engine.vllm_options import (
    detect_hardware,
    engine_arguments,
    prepare_environment,
    span_environment,
    temporary_environment,
    visible_devices,
)
from trinity.config.plan.auxiliary import class_of, model_directory
from trinity.errors import UserError
from trinity.runtime.imports import collection_paused
from trinity.runtime.threads import in_daemon_thread
from trinity.types import MAX_EXPERTS, ArrayData, FinishReason, SamplingParams
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generation, GenerationDelta, ImagePrompt, OnDelta, Scores

if TYPE_CHECKING:
    import vllm
    from transformers import PreTrainedTokenizerBase
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.logprobs import Logprob
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 0.5
"""The child process is killed after this time: it has no state worth keeping."""
SCHEMA_REJECTED = "the engine does not take the schema of the response: "
FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


class VllmEngine:
    """One vLLM engine: its scheduler and worker run in a child process, its front end in this one.

    Use `start_vllm` to make one. Each request carries its own seed: a response's tokens and
    log-probabilities do not depend on concurrent requests.
    """

    def __init__(self, engine: "AsyncLLM", options: EngineOptions) -> None:
        self._engine = engine
        self._model_path = options.model_path
        self._trusts_code = options.trusts_code
        self._returns_experts = options.records_experts
        self._max_model_len = options.max_model_len
        self._role = options.role
        self._structured_output = options.structured_output
        self._ignore_end = options.rollout.ignore_eos
        self._end_token_ids = [] if self._ignore_end else list(options.end_token_ids)
        self._vision = options.vision
        if self._vision is not None and not self._ignore_end:
            # A token of an image ends a response: it would stand for an image that is not there.
            self._end_token_ids.append(self._vision.image_token)
        self._request_numbers = itertools.count(1)
        self._swaps: dict[str, list[int]] = {}
        """Of the requests that generate: tokens at each change of the weights."""
        self._num_tokens: dict[str, int] = {}
        """Of these requests, as they are paused."""
        has_gpu = detect_hardware().has_gpu
        size = options.rollout.gpus_per_engine if has_gpu or options.span else 1
        self._receivers = Receivers(count=size, have_gpu=has_gpu)

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt; cancelling the call aborts the request."""
        self._check_vocabulary(prompt_token_ids)
        if sampling.json_schema:
            self._check_schemas()
        deltas: list[GenerationDelta] = []
        with as_user_errors():
            parameters = self._parameters(sampling, min_tokens, as_deltas=on_delta is not None)
        error_prefix = SCHEMA_REJECTED if sampling.json_schema else ""

        async def draw(request_id: str) -> "CompletionOutput":
            answers = self._stream(prompt_token_ids, parameters, error_prefix, request_id)
            async for answer in answers:
                output = answer.outputs[0]
                deltas.append(_delta(output, sampling.logprobs))
                if on_delta is not None and output.token_ids:
                    on_delta(deltas[-1])
            return output

        with self._registered() as (request_id, swaps):
            if sampling.stop:
                await self._ensure_tokenizer()
            output = await unless_cancelled(
                draw(request_id), lambda: drawn_tokens(self._engine).get(request_id, 0)
            )
        num_tokens = sum(len(delta.token_ids) for delta in deltas)
        return Generation(
            routed_experts=self._routes(output, len(prompt_token_ids), num_tokens),
            token_ids=[token for delta in deltas for token in delta.token_ids],
            logprobs=[logprob for delta in deltas for logprob in delta.logprobs],
            finish_reason=FINISH_REASONS[output.finish_reason],
            likeliest=[top for delta in deltas for top in delta.likeliest],
            swaps=tuple(swaps),
        )

    @contextmanager
    def _registered(self) -> Iterator[tuple[str, list[int]]]:
        """Yields the id of a new request, and the list of its swaps until the block ends."""
        request_id = str(next(self._request_numbers))
        swaps = self._swaps[request_id] = list[int]()
        try:
            yield request_id, swaps
        finally:
            del self._swaps[request_id]

    async def pause_requests(self) -> None:
        """Pauses all requests where they are; see `PausingEngine`.

        vLLM returns once its core is idle and the last tokens are sent. They are counted once its
        front end has read them; a request that ended with them is no longer registered then.
        """
        await self._engine.pause_generation(mode="keep", clear_cache=True)
        await self._read_all_outputs()
        self._num_tokens = drawn_tokens(self._engine)

    async def resume_requests(self) -> None:
        """Continues all requests; one that the core does not know yet has no token."""
        for request_id, swaps in self._swaps.items():
            swaps.append(self._num_tokens.get(request_id, 0))
        await self._engine.resume_generation()

    async def _read_all_outputs(self) -> None:
        """Waits until the front end has read all that the core has sent.

        It reads one message after the other, so it has finished all others once it takes the last
        of two empty ones.
        """
        from vllm.v1.engine import EngineCoreOutputs

        if self._engine.output_handler is None:  # it begins with the first request
            return
        outputs = self._engine.engine_core.outputs_queue
        for _ in range(2):
            outputs.put_nowait(EngineCoreOutputs())
        while not outputs.empty():  # noqa: ASYNC110  # the queue has no event
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # requests that have ended return

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores the tokens as a prompt; the token that vLLM generates after it is dropped.

        A sequence that fills the model's context has no room for that token. Its own last token is
        then scored in the position of the generated one; so is one of an image that a model wrote
        itself, which a prompt cannot have.
        """
        self._check_vocabulary(token_ids)
        is_apart = len(token_ids) == self._max_model_len or (
            self._vision is not None and token_ids[-1] == self._vision.image_token
        )
        prompt, last = (
            (token_ids, [])
            if not is_apart
            else (ImagePrompt.without_last(token_ids), token_ids[-1:])
        )
        answer = await self._score_prompt(prompt, last, num_likeliest)
        positions = [options for options in answer.prompt_logprobs or () if options is not None]
        tops = [_top_logprobs(p, num_likeliest) for p in positions] if num_likeliest else []
        if last:
            positions += answer.outputs[0].logprobs or ()
        if last and num_likeliest:
            answer = await self._score_prompt(prompt, [], num_likeliest)
            tops += [_top_logprobs(p, num_likeliest) for p in answer.outputs[0].logprobs or ()]
        return Scores(
            logprobs=[
                float(options[token].logprob)
                for token, options in zip(token_ids[1:], positions, strict=True)
            ],
            likeliest=tops,
        )

    async def load_weights(self, directory: Path) -> None:
        """Replaces the weights in place and drops their cache; `directory` is absolute."""
        await self._engine.collective_rpc("load_checkpoint", args=(str(directory),))
        await self._drop_caches()

    @property
    def receivers(self) -> Receivers:
        """The vLLM workers."""
        return self._receivers

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Receives weights into the workers' memory, in place, and drops the old ones' cache."""
        failures = await self._engine.collective_rpc("receive_weights", args=(asdict(slot),))
        await self._drop_caches()
        return next((failure for failure in failures if failure), "")

    async def _drop_caches(self) -> None:
        """Drops the results of the old weights, the vision tower's among them."""
        await self._engine.reset_prefix_cache()
        if self._vision is not None:
            await self._engine.reset_encoder_cache()

    async def sleep(self, level: int, *, keeps_requests: bool = False) -> None:
        """Has the worker free the device and let go of its lock; on a CPU no memory is freed.

        Requests that are kept wait again in the scheduler, and their KV cache is recomputed when
        the engine wakes up.
        """
        await self._engine.sleep(level, mode="keep" if keeps_requests else "abort")
        await self._engine.collective_rpc("release_device")

    async def wake_up(self, device: DeviceRequest) -> bool:
        """Has the worker take the lock, then its memory; after level 2 that holds no weights."""
        arguments = (str(device.path), device.reason, device.seconds)
        taken = await self._engine.collective_rpc("take_device", args=arguments)
        if not all(taken):
            return False
        await self._engine.wake_up()
        return True

    async def check(self) -> None:
        """Raises EngineDied if the child process has died."""
        if self._engine.errored:
            raise EngineDied(f"the process of {self._role} died") from self._engine.dead_error

    async def close(self) -> None:
        """Ends the child process and closes the sockets to it, which vLLM leaves open.

        The task that reads answers ends first: it would report the child's end as a failure.
        """
        if self._engine.output_handler is not None:
            self._engine.output_handler.cancel()
        await asyncio.to_thread(self._engine.shutdown, SHUTDOWN_SECONDS)
        self._engine.engine_core.resources.ctx.destroy(linger=0)

    async def _score_prompt(
        self, prompt: list[int], last: list[int], num_likeliest: int
    ) -> "RequestOutput":
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = VllmSamplingParams(
            max_tokens=1,
            prompt_logprobs=num_likeliest,
            logprobs=len(last) or num_likeliest or None,
            logprob_token_ids=last or None,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request_id = str(next(self._request_numbers))
        [answer] = [output async for output in self._stream(prompt, parameters, "", request_id)]
        return answer

    async def _stream(
        self,
        prompt: list[int],
        parameters: "vllm.SamplingParams",
        error_prefix: str,
        request_id: str,
    ) -> "AsyncGenerator[RequestOutput]":
        """Yields vLLM's answers; `error_prefix` begins the error if it rejects the request."""
        answers: AsyncGenerator[RequestOutput] = self._engine.generate(
            request_of(prompt, self._vision),
            parameters,
            request_id=request_id,
        )
        async with aclosing(answers):
            while True:
                with as_user_errors(error_prefix):
                    answer = await anext(answers, None)
                if answer is None:
                    return
                check_expansion(prompt, answer.prompt_token_ids)
                yield answer

    def _routes(
        self, output: "CompletionOutput", prompt_length: int, num_tokens: int
    ) -> ArrayData | None:
        """Returns the experts of the passes that drew the tokens, if the engine records them."""
        if not self._returns_experts:
            return None
        num_experts = self._engine.model_config.get_num_experts()
        return drawn_by(output.routed_experts, prompt_length, num_tokens, num_experts)

    def _check_vocabulary(self, token_ids: list[int]) -> None:
        """Rejects unknown tokens: they kill the engine, and vLLM checks only with a tokenizer."""
        size = self._engine.model_config.get_vocab_size()
        for token in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token < size:
                raise UserError(f"the model has {size} tokens, and {token} is none of them")

    def _check_schemas(self) -> None:
        if not self._structured_output:
            raise UserError(
                "responses are held to a JSON Schema where the model has an OpenAI-compatible "
                "address: set `explorer.rollout_model.enable_openai_api: true`"
            )
        if self._ignore_end:
            raise UserError(
                "`explorer.rollout_model.ignore_eos: true` lets no response end, not even one that "
                "is held to a JSON Schema: leave it out"
            )

    async def _ensure_tokenizer(self) -> None:
        """Loads the front end's tokenizer, which it needs only to find stop texts."""
        processor = self._engine.output_processor
        if processor.tokenizer is None:
            tokenizer = await in_daemon_thread(
                lambda: _load_tokenizer(self._model_path, self._trusts_code)
            )
            processor.tokenizer = tokenizer

    def _parameters(
        self, sampling: SamplingParams, min_tokens: int, *, as_deltas: bool
    ) -> "vllm.SamplingParams":
        """Builds vLLM's parameters; it decodes responses only if stop texts may end them."""
        from vllm import SamplingParams as VllmSamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        schema = sampling.json_schema
        return VllmSamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_tokens,
            # A schema may allow only the end token, which must then be possible.
            min_tokens=0 if schema else min_tokens,
            seed=sampling.seed,
            stop_token_ids=self._end_token_ids,
            ignore_eos=self._ignore_end,
            logprobs=sampling.logprobs,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            stop=list(sampling.stop),
            detokenize=bool(sampling.stop),
            structured_outputs=StructuredOutputsParams(json=schema) if schema else None,
            output_kind=RequestOutputKind.DELTA if as_deltas else RequestOutputKind.FINAL_ONLY,
        )


def drawn_tokens(engine: "AsyncLLM") -> dict[str, int]:
    """Returns the tokens of each request that the front end knows, as far as it has read."""
    return {
        state.external_req_id: state.detokenizer.num_output_tokens()
        for state in engine.output_processor.request_states.values()
        if state.detokenizer is not None
    }


@contextmanager
def as_user_errors(error_prefix: str = "") -> Iterator[None]:
    """Converts vLLM's rejection of a request to a UserError: the caller made the mistake."""
    from vllm import exceptions

    # vLLM 0.24, the build for GPUs, has no name for them: there they are kinds of ValueError.
    refusal: type[Exception] = getattr(exceptions, "VLLMClientError", ValueError)
    try:
        yield
    except refusal as error:
        raise UserError(f"{error_prefix}{error}") from error


def drawn_by(
    routed: ArrayData | None, prompt_length: int, num_tokens: int, num_experts: int
) -> ArrayData:
    """Returns the experts, plus 1, of the pass that drew each token, in the smallest type.

    vLLM's record has a row for each token that the model has read, from the first of the prompt.
    The pass that draws a token reads the one before it.

    Raises: UserError if the record does not reach that far, or has more experts than a record can.
    """
    first = prompt_length - 1
    if routed is None or len(routed) < first + num_tokens:
        found = 0 if routed is None else len(routed)
        raise UserError(
            f"the engine recorded experts of {found} tokens, and {first + num_tokens} were read: "
            "leave out `algorithm.enable_router_replay`"
        )
    if num_experts > MAX_EXPERTS:
        raise UserError(
            f"experts are recorded up to {MAX_EXPERTS}, and the model has {num_experts}"
        )
    dtype = np.uint8 if num_experts < 255 else np.int16
    return (routed[first : first + num_tokens].astype(np.int16) + 1).astype(dtype)


def _delta(output: "CompletionOutput", num_likeliest: int) -> GenerationDelta:
    """Returns the whole response, or the part since the last delta."""
    token_ids, positions = list(output.token_ids), list(output.logprobs or ())
    return GenerationDelta(
        token_ids=token_ids,
        logprobs=[
            float(options[token].logprob)
            for token, options in zip(token_ids, positions, strict=True)
        ],
        likeliest=[_top_logprobs(p, num_likeliest) for p in positions] if num_likeliest else [],
    )


def _top_logprobs(position: "Mapping[int, Logprob]", count: int) -> list[tuple[int, float]]:
    """Returns the tokens of the best ranks; the sampled one is among the options at any rank."""
    ranked = sorted((o.rank or 0, token, float(o.logprob)) for token, o in position.items())
    return [(token, logprob) for _, token, logprob in ranked[:count]]


def _load_tokenizer(model_path: str, trusts_code: bool) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path, trust_remote_code=trusts_code)


async def start_vllm(options: EngineOptions) -> VllmEngine:
    """Starts an engine without blocking the event loop on imports and the loading of weights."""
    return VllmEngine(await start_async_llm(options), options)


async def start_async_llm(options: EngineOptions) -> "AsyncLLM":
    """Starts vLLM's engine of a model that generates, or of one that scores."""
    abandoned = threading.Event()
    try:
        engine = await in_daemon_thread(lambda: _start(options, abandoned))
    except asyncio.CancelledError:
        abandoned.set()
        for child in multiprocessing.active_children():
            child.kill()
        raise
    # The front end keeps hundreds of thousands of objects; walking them all in a full collection
    # stops the loop for a third of a second.
    gc.collect()
    gc.freeze()
    return engine


def _pool_all_tokens(arguments: "AsyncEngineArgs") -> None:
    """Has a process reward model of vLLM's give the scores of all tokens, not of a tag's alone."""
    from vllm.config import PoolerConfig

    directory = model_directory(arguments.model)
    if directory is not None and class_of(directory).endswith("RewardModel"):
        arguments.pooler_config = PoolerConfig(pooling_type="ALL")


def _start(options: EngineOptions, abandoned: threading.Event) -> "AsyncLLM":
    hardware = detect_hardware()
    prepare_environment(options.model_path, hardware, options.rollout.engine_num)
    with collection_paused():
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

    if abandoned.is_set():
        raise RuntimeError("the process is ending")
    logger.info(
        "starting the engine", extra={"model": options.model_path, "number": options.number}
    )
    arguments = AsyncEngineArgs(**engine_arguments(options, hardware))
    if options.encode_rated is not None:
        _pool_all_tokens(arguments)
    environment = visible_devices(options, hardware)
    if options.span is not None:
        environment |= span_environment(options.span.address, hardware)
    with temporary_environment(environment):
        return AsyncLLM.from_engine_args(arguments)
