"""Looks into data that is trained on as it is, for `trinity config init --algorithm sft`.

    options, found = look_into_data(draft, "sft")
    options.data_format  # {"prompt_type": "messages", "messages_key": "messages"}

A row has messages, a prompt with its response, a text, or two answers of which one is better.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trinity.algorithm.algorithm_type import RowSchema
from trinity.cli.token_lengths import num_positions, prompt_counter, token_counter
from trinity.config.data_files import find_data_files
from trinity.config.data_rows import Row, count_rows, first_rows
from trinity.config.docs.catalog import DraftOptions
from trinity.config.schema.data import FormatConfig
from trinity.config.training_rows import read_cpt_row, read_dpo_row, read_kto_row, read_sft_row
from trinity.errors import UserError
from trinity.user_code.columns import column_names, has_column, optional_column

NUM_ROWS = 512
"""Rows that are looked at."""
NUM_RENDERED = 32
LENGTH = 1024
"""Tokens that a row may always have, if the model has them."""
MESSAGES = ("messages", "message", "conversation", "conversations", "dialogue")
PROMPTS = ("prompt", "question", "problem", "instruction", "query", "input")
RESPONSES = ("response", "answer", "completion", "output", "solution", "target")
TEXTS = ("text", "content", "document")
CHOSEN, REJECTED = ("chosen", "preferred", "better"), ("rejected", "dispreferred", "worse")
READ_ALWAYS = frozenset({"tools"})
LABELS = ("label", "labels", "is_desirable", "desirable")
LEARNING_RATES: Mapping[RowSchema, float] = {"sft": 1e-5, "cpt": 1e-5, "dpo": 1e-6, "kto": 1e-6}
READERS = {"dpo": read_dpo_row, "kto": read_kto_row}
Columns = Mapping[str, str]
"""Keys of `format`."""


def has_labels(taskset: str) -> bool:
    """Returns True if rows have a column of labels, or cannot be seen."""
    if not Path(taskset).exists():
        return True
    (row,) = first_rows(find_data_files(taskset, "train"), 1)
    return any(has_column(row, name) for name in LABELS)


def look_into_data(
    options: DraftOptions,
    schema: RowSchema,
    prompt_key: str | None = None,
    response_key: str | None = None,
) -> tuple[DraftOptions, tuple[str, ...]]:
    """Returns the options of the file, and a sentence for each finding.

    Raises: UserError if rows lack the given columns, or their columns cannot be determined.
    """
    options = replace(options, learning_rate=LEARNING_RATES[schema])
    if not Path(options.taskset).exists():
        columns = usual_columns(schema, prompt_key, response_key)
        unread = f"{options.taskset} is not here: columns and lengths are the usual ones"
        return replace(options, data_format=columns), (unread,)
    files = find_data_files(options.taskset, "train")
    rows = first_rows(files, NUM_ROWS)
    columns = find_columns(rows[0], schema, prompt_key, response_key)
    told = ", ".join(f"`{key}: {name}`" for key, name in columns.items())
    found = [f"columns of {options.taskset}: {told}{unread_columns(rows[0], columns.values())}"]
    if (num_rows := count_rows(files)) < options.batch_size:
        options = replace(options, batch_size=1 << (num_rows.bit_length() - 1))
        found.append(f"{num_rows} rows make steps of {options.batch_size} rows")
    options = _with_length(replace(options, data_format=columns), schema, rows, found)
    return options, tuple(found)


def _with_length(
    options: DraftOptions, schema: RowSchema, rows: Sequence[Row], found: list[str]
) -> DraftOptions:
    """Sets twice the length of the longest row, limited by the model's positions."""
    directory = Path(options.model)
    if not directory.is_dir():
        found.append(f"{options.model} is not here: the length of a row is the usual one")
        return options
    form = FormatConfig.model_validate(options.data_format)
    longest = _longest(directory, form, schema, rows)
    found.append(f"the first {len(rows)} rows have at most {longest} tokens")
    length = max(LENGTH, -(-2 * longest // 64) * 64)
    if (positions := num_positions(directory)) is not None:
        found.append(f"the model has {positions} positions")
        length = min(length, positions)
    return replace(options, max_model_len=length)


def _longest(directory: Path, form: FormatConfig, schema: RowSchema, rows: Sequence[Row]) -> int:
    count, render = token_counter(directory), prompt_counter(directory)
    texts = [
        [{"role": str(m["role"]), "content": str(m.get("content") or "")} for m in messages]
        for row in rows
        for messages in _conversations(row, form, schema)
    ]
    by_size = sorted(texts, key=lambda messages: sum(len(m["content"]) for m in messages))
    measured = (
        count(messages[0]["content"]) if schema == "cpt" else render(messages, count)
        for messages in by_size[-NUM_RENDERED:]
    )
    return max(measured, default=0)


def _conversations(
    row: Row, form: FormatConfig, schema: RowSchema
) -> Iterator[Sequence[Mapping[str, object]]]:
    """Yields the trained conversations of a row; skips a row that the check refuses."""
    try:
        if schema == "cpt":
            yield [{"role": "user", "content": read_cpt_row(dict(row), form, "row")}]
            return
        read = READERS.get(schema, read_sft_row)(dict(row), form, "row")
    except UserError:
        return
    for answer in read.answers:
        yield [*read.prompt, *answer]


def unread_columns(row: Row, read: Iterable[str]) -> str:
    """Returns the end of a sentence with the non-empty columns that are not read."""
    used = {name.split(".")[0] for name in read} | READ_ALWAYS
    others = [name for name in row if name not in used and row[name] not in (None, "", [], {})]
    return f"; not read: {', '.join(f'`{name}`' for name in others)}" if others else ""


def usual_columns(
    schema: RowSchema, prompt_key: str | None = None, response_key: str | None = None
) -> Columns:
    """Returns the columns of rows that cannot be seen."""
    prompt = prompt_key or PROMPTS[0]
    if schema == "cpt":
        return {"prompt_type": "plaintext", "prompt_key": prompt_key or TEXTS[0]}
    if schema == "dpo":
        pair = {"chosen_key": CHOSEN[0], "rejected_key": REJECTED[0]}
        return {"prompt_type": "plaintext", "prompt_key": prompt, **pair}
    if schema == "kto":
        answer = {"response_key": response_key or "completion", "label_key": LABELS[0]}
        return {"prompt_type": "plaintext", "prompt_key": prompt, **answer}
    if prompt_key or response_key:
        response = response_key or RESPONSES[0]
        return {"prompt_type": "plaintext", "prompt_key": prompt, "response_key": response}
    return {"prompt_type": "messages", "messages_key": MESSAGES[0]}


def find_columns(
    row: Row, schema: RowSchema, prompt_key: str | None = None, response_key: str | None = None
) -> Columns:
    """Returns the columns that a row has.

    Raises: UserError naming the row's columns.
    """
    if schema == "cpt":
        name = find_column(row, prompt_key, TEXTS, "--prompt-key")
        return {"prompt_type": "plaintext", "prompt_key": name}
    if schema == "dpo":
        return _pair_columns(row, prompt_key)
    if schema == "kto":
        label = find_column(row, None, LABELS, "its `format.label_key` in the file")
        return {**find_columns(row, "sft", prompt_key, response_key), "label_key": label}
    if prompt_key is None and response_key is None:
        for name in MESSAGES:
            if isinstance(optional_column(row, name), list):
                return {"prompt_type": "messages", "messages_key": name}
    prompt = find_column(row, prompt_key, PROMPTS, "--prompt-key")
    response = find_column(row, response_key, RESPONSES, "--response-key")
    return {"prompt_type": "plaintext", "prompt_key": prompt, "response_key": response}


def _pair_columns(row: Row, prompt_key: str | None) -> Columns:
    """Returns the columns of a pair; both answers may include the prompt instead of a column."""
    chosen = find_column(row, None, CHOSEN, "its `format.chosen_key` in the file")
    rejected = find_column(row, None, REJECTED, "its `format.rejected_key` in the file")
    answers = {"chosen_key": chosen, "rejected_key": rejected}
    is_within = isinstance(optional_column(row, chosen), list)
    if is_within and not any(has_column(row, name) for name in (prompt_key, *PROMPTS) if name):
        return {"prompt_type": "plaintext", **answers}
    prompt = find_column(row, prompt_key, PROMPTS, "--prompt-key")
    return {"prompt_type": "plaintext", "prompt_key": prompt, **answers}


def find_column(row: Row, given: str | None, usual: Sequence[str], option: str) -> str:
    """Returns the given column, or the first usual one that the row has.

    Raises: UserError naming the row's columns and the option.
    """
    wanted = [given] if given is not None else usual
    if found := next((name for name in wanted if has_column(row, name)), None):
        return found
    listed = ", ".join(column_names(row))
    which = f"has no column `{given}`" if given is not None else "has none of the usual columns"
    raise UserError(f"the first row {which}: give {option}, one of {listed}")
