"""What tests of formatters share: a chat template, and rows read back as text."""

from collections.abc import Callable

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from services.trainer.data.encoders import Formatter
from services.trainer.types import TrainRow
from trinity.types import JsonObject, JsonValue

SPECIALS = ("<end>", "<system>", "<user>", "<assistant>", "<tool>")
CHARACTERS = "0123456789+=() \nabcdefghijklmnopqrstuvwxyz"
TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}>{{ message['content'] }}<end>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

Load = Callable[..., Formatter]
"""A formatter of these columns: `load("sft", max_length=9, prompt_type="messages")`."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token a character, and one for each of the words that begin and end a turn."""
    vocabulary = {token: number for number, token in enumerate([*SPECIALS, *CHARACTERS])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>")
    fast.add_special_tokens({"additional_special_tokens": list(SPECIALS[1:])})
    fast.chat_template = TEMPLATE
    return fast


def only_row(formatter: Formatter, row: JsonObject, index: int = 0) -> TrainRow:
    """The one row to train on that this row of data gives."""
    (found,) = formatter(row, index=index, position=0, weight=1.0)
    return found


def answer_of(tokenizer: PreTrainedTokenizerFast, row: TrainRow) -> str:
    """What comes after the prompt."""
    return decoded(tokenizer, row.tokens[row.prompt_length :])


def learned_of(tokenizer: PreTrainedTokenizerFast, row: TrainRow) -> str:
    """What of it is trained on."""
    return decoded(tokenizer, row.tokens[row.prompt_length :][row.mask])


def decoded(tokenizer: PreTrainedTokenizerFast, tokens: object) -> str:
    """The tokens' text."""
    return "".join(tokenizer.convert_ids_to_tokens(list(tokens)))  # type: ignore[call-overload]


def messages_of(*turns: tuple[str, str]) -> list[JsonValue]:
    """A message a pair of role and content."""
    return [{"role": role, "content": content} for role, content in turns]
