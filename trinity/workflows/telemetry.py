"""Spans and metrics of rollout engine calls, by OpenTelemetry's generative model conventions."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trinity.telemetry import metrics, names, tracing
from trinity.telemetry.tracing import SpanContextRef
from trinity.types import SamplingParams
from trinity.workflows.generation import Generation

OPERATION = "text_completion"
_ABOUT = {names.OPERATION: OPERATION, names.PROVIDER: "trinity"}


def _ignore(_: Generation) -> None:
    pass


@contextmanager
def trace_generation(
    parent: SpanContextRef | None, num_prompt_tokens: int, sampling: SamplingParams
) -> Iterator[Callable[[Generation], None]]:
    """Traces a call; the block passes the outcome to the yielded function.

    The parent is explicit because a workflow in its own thread has no current span.
    """
    if not (tracing.is_on() or metrics.is_on()):
        yield _ignore
        return
    begun = time.perf_counter()
    about: dict[str, tracing.Value] = {
        **_ABOUT,
        names.MAX_TOKENS: sampling.max_tokens,
        names.TEMPERATURE: sampling.temperature,
        names.INPUT_TOKENS: num_prompt_tokens,
    }
    with tracing.span(OPERATION, parent=parent, kind="client", attributes=about) as span:

        def made(generation: Generation) -> None:
            num_tokens = len(generation.token_ids)
            span.set(names.OUTPUT_TOKENS, num_tokens)
            span.set(names.FINISH_REASON, generation.finish_reason.value)
            metrics.GENERATE_SECONDS.record(time.perf_counter() - begun, _ABOUT)
            tokens = metrics.GENERATE_TOKENS
            tokens.record(num_prompt_tokens, {**_ABOUT, names.TOKEN_TYPE: "input"})
            tokens.record(num_tokens, {**_ABOUT, names.TOKEN_TYPE: "output"})

        yield made
