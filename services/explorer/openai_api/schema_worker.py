"""Compiles JSON Schemas as the engine does, in a process that may be killed.

    python -m services.explorer.openai_api.schema_worker MODEL_PATH

The first request is empty, and its answer says that the tokenizer is loaded. Each other one has a
`schema` as a JSON text; its answer has the processor's `seconds`.
"""

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trinity.runtime.process.channel import RequestChannel

MORE_BYTES = 2 * 1024**3
"""Memory for schemas, on top of the libraries and the tokenizer."""


def load_compiler(model_path: str) -> Callable[[str], None]:
    """Returns a function that compiles a schema in all the ways vLLM may; it never raises."""
    import llguidance
    import xgrammar
    from transformers import AutoTokenizer

    tokenizer = xgrammar.TokenizerInfo.from_huggingface(AutoTokenizer.from_pretrained(model_path))
    compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)

    def compile_schema(schema: str) -> None:
        # The engine reports errors in schemas; only time and memory are tested here.
        with suppress(Exception):
            xgrammar.Grammar.from_json_schema(schema)
            compiler.compile_json_schema(schema)
        with suppress(Exception):
            grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
            llguidance.LLMatcher.validate_grammar(grammar)

    return compile_schema


def limit_memory(more_bytes: int) -> None:
    """Limits the data memory of this process to its current size plus `more_bytes`."""
    status = Path("/proc/self/status").read_text().splitlines()
    [held] = [int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:")]
    resource.setrlimit(resource.RLIMIT_DATA, (held + more_bytes, held + more_bytes))


def main() -> None:
    """Answers until there is no more input."""
    channel = RequestChannel()
    compile_schema = load_compiler(sys.argv[1])
    limit_memory(MORE_BYTES)
    for request in channel.requests():
        begun = time.process_time()
        if request:
            compile_schema(request["schema"])
        channel.write({"seconds": time.process_time() - begun})


if __name__ == "__main__":
    main()
