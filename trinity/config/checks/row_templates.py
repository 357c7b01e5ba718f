"""Tries a model's chat template on rows of training data, as the trainer will.

Import it where rows are at hand: Jinja takes a tenth of the time of `trinity config check`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trinity.config.checks.model import own_template
from trinity.config.plan.model import local_model_directory
from trinity.config.plan.parts import ResolvedExperienceBuffer
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.model import merge_template_kwargs
from trinity.config.training_rows import PromptRow
from trinity.data.chat_spans import ChatTemplate, Conversation, find_answer, find_assistant_spans
from trinity.errors import UserError

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """The chat template that rows of a buffer are written by.

    template.check(row, index)
    """

    template: ChatTemplate
    trains_all_turns: bool

    def check(self, row: PromptRow, index: int) -> None:
        """Raises: UserError when the template does not fit the row."""
        prompt = Conversation(
            index=index,
            messages=[dict(message) for message in row.prompt],
            tools=list(row.tools) or None,
        )
        for answer in row.answers:
            whole = prompt.with_messages([dict(message) for message in answer])
            if self.trains_all_turns:
                find_assistant_spans(self.template, whole.messages_before(whole.answers[-1] + 1))
            else:
                find_answer(self.template, whole, len(prompt.messages))


def load_row_template(stage: StagePlan, buffer: ResolvedExperienceBuffer) -> RowTemplate | None:
    """Returns the template; None, without an error, if it is not known on this machine."""
    try:
        directory = local_model_directory(stage.model_path)
        own = own_template(directory) if directory is not None else None
    except UserError:
        return None
    form = buffer.format
    given = form.chat_template or stage.chat_template or own
    sources = {"default": given} if isinstance(given, str) else _named(given)
    if directory is None or "default" not in sources:
        return None

    def source(conversation: Conversation) -> str:
        return sources["tool_use" if conversation.tools and "tool_use" in sources else "default"]

    variables = merge_template_kwargs(stage.config.model.template_kwargs, form.enable_thinking)
    return RowTemplate(
        ChatTemplate(source, {**_special_tokens(directory), **variables}),
        trains_all_turns=stage.algorithm.row_schema != "dpo"
        and form.prompt_type == "messages"
        and form.enable_concatenated_multi_turn,
    )


def _named(given: object) -> dict[str, str]:
    entries = given if isinstance(given, list) else []
    return {str(entry["name"]): str(entry["template"]) for entry in entries if "template" in entry}


def _special_tokens(directory: Path) -> dict[str, str]:
    try:
        keys = json.loads((directory / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    tokens: dict[str, str] = {}
    for name in _SPECIAL_TOKENS:
        token = keys.get(name) if isinstance(keys, Mapping) else None
        text = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(text, str):
            tokens[name] = text
    return tokens
