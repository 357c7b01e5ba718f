"""Chat templates tried on rows and rollouts of every kind, for docs/what-is-trained.md.

python -m tests.support.chat_families FOLDER docs/what-is-trained.md

FOLDER holds public templates as OWNER+REPOSITORY/PATH. They are fetched for the trial, never kept.
"""

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from services.explorer.engine.tokenizer import HuggingFaceTokenizer
from services.trainer.data.chat import ChatEncoder, Encoded
from services.trainer.data.encoders import DpoEncoder, SftEncoder
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.checks.row_templates import RowTemplate
from trinity.config.schema.data import FormatConfig
from trinity.config.training_rows import check_training_row
from trinity.data.chat_spans import ChatTemplate
from trinity.errors import UserError
from trinity.types import Experience, FinishReason, JsonObject, SamplingParams
from trinity.workflows.answers import match_answers
from trinity.workflows.generation import Generation, ModelLimits, OnDelta, Scores
from trinity.workflows.model import ModelWrapper
from trinity.workflows.turns import merge_turns

TEXT = (
    "where do the two rivers meet and what is the name of the town between them \n\n the answer is "
    "seven because three and four are seven user assistant system <think>\n</think>\n 12 + 30 = 42 "
)
WORDS = r"\s*[\r\n]+|\s+(?!\S)|\s+| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
"""Where newer tokenizers part words: line breaks stay together."""
TAGS = re.compile(
    r"<[|\uff5c][^<>{}' ]+[|\uff5c]>|\[/?[A-Z_]+\]|<(?:start|end)_of_turn>|<SPECIAL_\d+>|</?think>"
)
BEGIN, END = "<!-- templates -->", "<!-- end of templates -->"
LLAMA = "carlosfundora+llama.cpp-1-bit-turbo/models/templates"
TRL = "huggingface+trl/trl/chat_templates"
AXOLOTL = "axolotl-ai-cloud+axolotl/src/axolotl/utils/chat_templates/templates"
CHATML = r"<\|im_start\|>assistant\n"
TURN = r"<start_of_turn>model\n"
ROLE = r"<\|start_of_role\|>assistant<\|end_of_role\|>"
HEADER = r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n"
KIMI = r"<\|im_assistant\|>assistant<\|im_middle\|>"
BAR, GAP = "\uff5c", "\u2581"
R1 = f"<{BAR}Assistant{BAR}>(?:<think>\n)?|<{BAR}tool{GAP}outputs{GAP}end{BAR}>"
V31 = f"<{BAR}Assistant{BAR}>(?:</think>|<think>)|<{BAR}tool{GAP}output{GAP}end{BAR}>"
EOS = f"<{BAR}end{GAP}of{GAP}sentence{BAR}>"
THINKS = "why so\n</think>\n\n{}"
GLM_ENDS = "<|user|> <|observation|> <|endoftext|>"


@dataclass(frozen=True, slots=True)
class Family:
    """A chat template and where, by its makers' description, the model begins and ends a turn."""

    name: str
    path: str
    opens: str
    """Pattern of the text after which the model writes."""
    end_tokens: str
    """Tokens with which the model ends a turn, the usual one first."""
    says: str = "{}"
    """What the model writes around an answer."""
    thoughts: str = "reasoning_content"
    """Key of the thoughts of a message."""
    variables: JsonObject = field(default_factory=dict)
    ends: str = ""
    """Pattern of the end of a turn, where it is more than these tokens."""

    @property
    def end_pattern(self) -> str:
        """Pattern of the end of a turn."""
        return self.ends or "|".join(map(re.escape, self.end_tokens.split()))


FAMILIES = (
    Family("Qwen2.5", f"{LLAMA}/Qwen-Qwen2.5-7B-Instruct.jinja", CHATML, "<|im_end|>"),
    Family(
        *("Qwen3", f"{LLAMA}/Qwen-Qwen3-0.6B.jinja", CHATML, "<|im_end|>"),
        "<think>\nso\n</think>\n\n{}",
    ),
    Family(
        *("Qwen3.5", f"{LLAMA}/Qwen3.5-4B.jinja", rf"{CHATML}(?:<think>\n)?", "<|im_end|>"), THINKS
    ),
    Family("Llama 3", f"{TRL}/llama3.jinja", HEADER, "<|eot_id|>"),
    Family("Llama 3.1", f"{LLAMA}/meta-llama-Llama-3.1-8B-Instruct.jinja", HEADER, "<|eot_id|>"),
    Family("Llama 3.2", f"{LLAMA}/meta-llama-Llama-3.2-3B-Instruct.jinja", HEADER, "<|eot_id|>"),
    Family(
        "Llama 4",
        f"{AXOLOTL}/llama4.jinja",
        HEADER.replace("_id", "")
        .replace("start_header", "header_start")
        .replace("end_header", "header_end"),
        "<|eot|>",
    ),
    Family(
        *("Mistral Small 3.2", f"{LLAMA}/Mistral-Small-3.2-24B-Instruct-2506.jinja"),
        *(r"\[/INST\]|\[/TOOL_RESULTS\]", "</s>"),
    ),
    Family(
        *("Phi-3.5", f"{LLAMA}/microsoft-Phi-3.5-mini-instruct.jinja"),
        *(r"<\|assistant\|>\n", "<|end|> <|endoftext|>"),
    ),
    Family(
        *("Phi-4", f"{AXOLOTL}/phi_4.jinja"),
        *(r"<\|im_start\|>assistant<\|im_sep\|>", "<|im_end|>"),
    ),
    Family("Gemma 2", f"{LLAMA}/google-gemma-2-2b-it.jinja", TURN, "<end_of_turn>"),
    Family("Gemma 3", f"{TRL}/gemma3.jinja", TURN, "<end_of_turn>"),
    Family(
        "DeepSeek-R1-Distill",
        "pwilkin+llama.cpp/models/templates/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja",
        *(R1, EOS, THINKS),
    ),
    Family("DeepSeek-V3", f"{TRL}/deepseekv3.jinja", R1, EOS, THINKS),
    Family(
        "DeepSeek-V3.1",
        "ggml-org+llama.cpp/models/templates/deepseek-ai-DeepSeek-V3.1.jinja",
        *(V31, EOS),
    ),
    Family(
        "DeepSeek-V3.1, `thinking`",
        "ggml-org+llama.cpp/models/templates/deepseek-ai-DeepSeek-V3.1.jinja",
        *(V31, EOS, "why so</think>{}"),
        variables={"thinking": True},
    ),
    Family(
        *("gpt-oss", f"{LLAMA}/openai-gpt-oss-120b.jinja", r"<\|start\|>assistant"),
        *("<|return|> <|call|>", "<|channel|>final<|message|>{}", "thinking"),
        ends=r"<\|return\|>|<\|call\|>|<\|end\|>(?!<\|start\|>assistant)",
    ),
    Family("GLM-4.6", f"{LLAMA}/GLM-4.6.jinja", r"<\|assistant\|>", GLM_ENDS),
    Family(
        *("GLM-4.7", f"{LLAMA}/GLM-4.7-Flash.jinja"),
        *(r"<\|assistant\|>(?:<think>|</think>)", GLM_ENDS),
    ),
    Family("LFM2", f"{LLAMA}/LFM2-8B-A1B.jinja", CHATML, "<|im_end|>"),
    Family(
        *("Nemotron Nano 2", f"{LLAMA}/NVIDIA-Nemotron-Nano-v2.jinja"),
        *(r"<SPECIAL_11>Assistant\n(?:<think>\n)?", "<SPECIAL_12>", THINKS),
    ),
    Family(
        *("Nemotron 3 Nano", f"{LLAMA}/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja"),
        *(rf"{CHATML}<think>\n?", "<|im_end|>", THINKS),
    ),
    Family(
        *("Granite 3.3", f"{LLAMA}/ibm-granite-granite-3.3-2B-Instruct.jinja"),
        *(ROLE, "<|end_of_text|>"),
    ),
    Family("Granite 4.0", f"{LLAMA}/ibm-granite-granite-4.0.jinja", ROLE, "<|end_of_text|>"),
    Family("Kimi-K2", f"{LLAMA}/moonshotai-Kimi-K2.jinja", KIMI, "<|im_end|>"),
    Family("Kimi-K2-Thinking", f"{LLAMA}/Kimi-K2-Thinking.jinja", KIMI, "<|im_end|>"),
)


def bpe_tokenizer(
    specials: Sequence[str], template: str, *, words: str = WORDS
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on a few words; its first special token ends texts."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(dict.fromkeys(specials)),
    )
    raw.train_from_iterator([TEXT] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<bos>",
        eos_token=specials[0],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


def tokenizer_of(family: Family, template: str) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each tag of the template."""
    return bpe_tokenizer([*family.end_tokens.split(), *TAGS.findall(template)], template)


Turn = dict[str, Any]
QUESTIONS = ("QQ1 where do the rivers meet?", "QQ2 and the town?")
ANSWERS = ("AA1 they meet in seven", "AA2 it is 42")
ASKED: list[Turn] = [{"role": "user", "content": QUESTIONS[0]}]
SAID: Turn = {"role": "assistant", "content": ANSWERS[0]}
AGAIN: Turn = {"role": "user", "content": QUESTIONS[1]}
LAST: Turn = {"role": "assistant", "content": ANSWERS[1]}
TALK = [*ASKED, SAID, AGAIN, LAST]
TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "find_town",
        "description": "finds it",
        "parameters": {
            "type": "object",
            "properties": {"river": {"type": "string", "description": "its name"}},
            "required": ["river"],
        },
    },
}
CALL: Turn = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call12345",
            "type": "function",
            "function": {"name": "find_town", "arguments": '{"river": "CC1"}'},
        }
    ],
}
RESULT: Turn = {"role": "tool", "name": "find_town", "tool_call_id": "call12345", "content": "RR1"}


def _rows(family: Family) -> dict[str, JsonObject]:
    thoughts = {family.thoughts: "TT1 because of three and four"}
    return {
        "the last answer": {"messages": [*TALK]},
        "all answers": {"messages": [*TALK]},
        "`dpo`": {"messages": [*TALK[:-1]], "chosen": [LAST], "rejected": [SAID]},
        "system prompt": {"messages": [{"role": "system", "content": "SS1 be brief"}, *TALK]},
        "thoughts": {"messages": [*TALK[:-1], {**LAST, **thoughts}]},
        "tools": {"messages": [*ASKED, CALL, RESULT, SAID, AGAIN, LAST], "tools": [TOOL]},
    }


KINDS = tuple(_rows(FAMILIES[0]))


def trained_texts(words: PreTrainedTokenizerFast, row: Encoded) -> tuple[str, list[str]]:
    """The text of a row, and the pieces of it that are trained."""
    mask = [False] * row.prompt_length
    mask += row.mask or [True] * (len(row.tokens) - row.prompt_length)
    pieces: list[list[int]] = []
    for place, (token, is_trained) in enumerate(zip(row.tokens, mask, strict=True)):
        if is_trained and not (place and mask[place - 1]):
            pieces.append([])
        if is_trained:
            pieces[-1].append(token)
    return str(words.decode(row.tokens)), [str(words.decode(piece)) for piece in pieces]


def encode(family: Family, template: str, kind: str) -> list[tuple[str, list[str]]]:
    """The rows of a kind as the trainer makes them; the check of a configuration agrees.

    Raises: UserError when they are refused.
    """
    words = tokenizer_of(family, template)
    ends = frozenset(words.convert_tokens_to_ids(family.end_tokens.split()))
    chat = ChatEncoder(words, ends, family.variables)
    all_turns = kind not in ("the last answer", "`dpo`")
    form = FormatConfig(
        prompt_type="messages",
        messages_key="messages",
        chosen_key="chosen",
        rejected_key="rejected",
        enable_concatenated_multi_turn=all_turns,
    )
    row = _rows(family)[kind]
    schema: RowSchema = "dpo" if kind == "`dpo`" else "sft"
    make = (DpoEncoder if schema == "dpo" else SftEncoder)(chat, form)
    variables = {**words.special_tokens_map, **family.variables}
    check = RowTemplate(ChatTemplate(lambda _: template, variables), all_turns)
    read = check_training_row(row, form, schema, "row 0")
    assert read is not None
    try:
        made = [trained_texts(words, one) for one in make(row, 0)]
    except UserError as error:
        _require_same_refusal(check, read, error)
        raise
    check.check(read, 0)
    return made


def _require_same_refusal(check: RowTemplate, read: Any, error: UserError) -> None:
    try:
        check.check(read, 0)
    except UserError as other:
        assert str(other) == str(error)
        return
    raise AssertionError(f"the check says nothing of: {error}")


def fault(family: Family, kind: str, made: Sequence[tuple[str, list[str]]]) -> str:
    """What is wrong with rows, by a rule that reads their text alone; empty if nothing is.

    Answers are what stands between the text that lets the model begin and what it ends with.
    """
    for number, (text, trained) in enumerate(made):
        pattern = re.compile(f"(?:{family.opens})(.*?(?:{family.end_pattern}))", re.DOTALL)
        answers = pattern.findall(text)
        wanted = answers if kind not in ("the last answer", "`dpo`") else answers[-1:]
        if trained != wanted:
            return f"{trained} is trained, not {wanted}, in {text[-600:]!r}"
        said = [*ANSWERS] if kind not in ("the last answer", "`dpo`") else [(ANSWERS[::-1])[number]]
        said += {"thoughts": ["TT1"], "tools": ["CC1", "find_town"]}.get(kind, [])
        lacking = [part for part in said if part not in "".join(trained)]
        others = [part for part in (*QUESTIONS, "RR1", "SS1") if part in "".join(trained)]
        if lacking or others:
            return f"lacks {lacking}, has {others}: {trained}"
    return ""


def cell(family: Family, template: str, kind: str) -> str:
    """What the table says of rows of a kind."""
    try:
        made = encode(family, template, kind)
    except UserError as error:
        return f"refused: {_trait(str(error))}"
    if any(
        not re.search(f"(?:{family.end_pattern})$", piece) for _, all_ in made for piece in all_
    ):
        return "an answer without its end"
    return f"WRONG: {found}" if (found := fault(family, kind, made)) else "right"


def _trait(error: str) -> str:
    left_out = re.search(r"leaves out (.*?)( of message \d| \(|,)", error)
    if left_out:
        return f"drops {left_out[1]}"
    return "its own error" if "the chat template refuses it" in error else "not told apart"


class Engine:
    """An engine that says given texts, as tokens that are cut in a given way."""

    def __init__(self, answers: Sequence[list[int]]) -> None:
        self._answers = iter(answers)
        self.asked: list[tuple[list[int], list[int]]] = []

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Returns the next answer; each token has another log-probability."""
        tokens = next(self._answers)
        first = 1 + sum(len(answer) for _, answer in self.asked)
        self.asked.append((prompt_token_ids, tokens))
        logprobs = [-0.001 * (first + place) for place in range(len(tokens))]
        return Generation(token_ids=tokens, logprobs=logprobs, finish_reason=FinishReason.STOP)

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores nothing."""
        raise NotImplementedError


async def rollout(
    words: PreTrainedTokenizerFast,
    template: str,
    answers: Sequence[list[int]],
    *,
    variables: JsonObject | None = None,
    quote: Callable[[str], str] = str,
) -> tuple[Engine, list[Experience]]:
    """Turns of a conversation, joined to samples where their tokens continue one another."""
    engine = Engine(answers)
    reads = HuggingFaceTokenizer(words, template, (0,), template_kwargs=variables)
    model = ModelWrapper(
        generator=engine,
        tokenizer=reads,
        limits=ModelLimits(max_model_len=4000, max_prompt_tokens=3000),
        sampling=SamplingParams(max_tokens=500),
        weights=(0, 1),
        seed_of_call=lambda call: call,
        keeps_history=True,
    )
    messages: list[Any] = []
    for place in range(len(answers)):
        messages.append({"role": "user", "content": QUESTIONS[place % 2]})
        (turn,) = await model.chat_async(messages)
        messages.append({"role": "assistant", "content": quote(turn.response_text)})
    made = model.extract_experience_from_history()
    return engine, merge_turns(match_answers(messages, made, model.was_asked).turns)


def rollout_cell(family: Family, template: str) -> str:
    """What the table says of the turns of a rollout."""
    words = tokenizer_of(family, template)
    texts = [family.says.format(answer) + family.end_tokens.split()[0] for answer in ANSWERS]
    answers = [words(text, add_special_tokens=False)["input_ids"] for text in texts]
    _, samples = asyncio.run(rollout(words, template, answers, variables=family.variables))
    trained = [
        token
        for sample in samples
        for token in sample.sequence.tokens[sample.sequence.prompt_length :][
            sample.sequence.action_mask
        ].tolist()
    ]
    if trained != [token for answer in answers for token in answer]:
        return "WRONG"
    return "one sample" if len(samples) == 1 else "a sample a turn"


def table(folder: Path) -> str:
    """The table of public templates, with where they are from."""
    lines = [
        f"| template | {' | '.join(KINDS)} | turns of a rollout |",
        f"|---|{'---|' * (len(KINDS) + 1)}",
    ]
    for family in FAMILIES:
        template = (folder / family.path).read_text(encoding="utf-8")
        cells = [*(cell(family, template, kind) for kind in KINDS), rollout_cell(family, template)]
        lines.append(f"| {family.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table into the page."""
    folder, path = Path(sys.argv[1]), Path(sys.argv[2])
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    made = f"{before}{BEGIN}\n{table(folder)}\n{END}{after}"
    path.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
