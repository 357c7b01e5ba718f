"""Looks into a model and data for `trinity config init`: lengths, columns, reward, batch size.

    options, found = look_into(GivenOptions(name="x", model="/models/tiny", taskset="data"))
    found[0]  # "prompts have at most 71 tokens, ..."

What is given is kept. Models and data on the hub are not looked into.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.algorithm.types_without_rewards import ON_ROWS
from trinity.cli.config_check import check_on_machine
from trinity.cli.config_init_data import (
    find_column,
    has_labels,
    look_into_data,
    unread_columns,
)
from trinity.cli.token_lengths import guess_note, num_positions, prompt_counter, token_counter
from trinity.config.data_files import find_data_files
from trinity.config.data_rows import Row, count_rows, first_rows
from trinity.config.docs.catalog import IS_MATHS, DraftOptions, draft_config
from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.run.output import write_errors
from trinity.runtime.json_values import JsonValue
from trinity.runtime.owned_places import write_new_file
from trinity.user_code.columns import optional_column, row_reward

NUM_ROWS = 512
"""Rows that are looked at."""
NUM_RENDERED = 32
PROMPTS = ("question", "prompt", "problem", "instruction", "query", "input", "text")
TRUTHS = (
    *("answer", "solution", "response", "ground_truth", "reward_model.ground_truth"),
    *("final_answer", "truth", "target", "label", "output", "completion"),
)
SOURCE = "data_source"
EVAL_SPLITS = ("test", "validation", "val", "dev", "eval")
NUMBER = re.compile(r"[-+]?[$]?[\d,]*\.?\d+(/\d+)?%?")
MOST_WORDS = 6
"""Words of an answer that can be compared as a text."""
BATCH, LENGTH, LONGEST = 32, 1024, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """Options of the command; None where it is to find out."""

    name: str
    model: str
    taskset: str
    algorithm: str = "grpo"
    workflow: str | None = None
    reward: str | None = None
    prompt_key: str | None = None
    response_key: str | None = None
    eval_split: str | None = None
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Answering:
    """The workflow and the reward that fit the truths."""

    workflow: str
    reward: str | None
    why: str
    reward_fn_key: str = ""


def look_into(given: GivenOptions) -> tuple[DraftOptions, tuple[str, ...]]:
    """Returns the options of the file, and a sentence for each finding.

    Raises: UserError if rows lack the given columns, or their columns cannot be determined.
    """
    options = _draft(given)
    found: list[str] = []
    rows: Sequence[Row] = ()
    if Path(given.taskset).exists():
        files = find_data_files(given.taskset, "train")
        rows = first_rows(files, NUM_ROWS)
        options = _with_columns(options, given, rows)
        found.append(
            f"columns of {given.taskset}: `prompt_key: {options.prompt_key}`, "
            f"`response_key: {options.response_key}`"
        )
        options = _with_reward(options, given, rows, found)
        read = (options.prompt_key, options.response_key, options.reward_fn_key)
        found[0] += unread_columns(rows[0], read)
        options = _with_split(options, given, found)
        options = _with_batch(options, count_rows(files), found)
    else:
        found.append(f"{given.taskset} is not here: columns, reward and lengths are the usual ones")
    return _with_lengths(options, given, rows, found), tuple(found)


def _draft(given: GivenOptions) -> DraftOptions:
    """Returns the options, with usual values for those that are to be found out."""
    named = {name: value for name, value in asdict(given).items() if value is not None}
    return DraftOptions(**named)


def _with_columns(options: DraftOptions, given: GivenOptions, rows: Sequence[Row]) -> DraftOptions:
    return replace(
        options,
        prompt_key=find_column(rows[0], given.prompt_key, PROMPTS, "--prompt-key"),
        response_key=find_column(rows[0], given.response_key, TRUTHS, "--response-key"),
    )


def _with_reward(
    options: DraftOptions, given: GivenOptions, rows: Sequence[Row], found: list[str]
) -> DraftOptions:
    if given.workflow is not None:
        return options
    if given.reward is not None:  # it judges the answer, without instructions for one of ours
        return replace(options, workflow="simple_workflow")
    fits = fitting_reward(rows, options.response_key)
    named = f" with `{fits.reward}`" if fits.reward else ""
    if fits.reward_fn_key:
        named = f" with the reward that column `{fits.reward_fn_key}` names"
    found.append(f"{fits.why}: `{fits.workflow}`{named}")
    return replace(
        options,
        workflow=fits.workflow,
        reward=fits.reward,
        reward_fn_key=fits.reward_fn_key,
    )


def fitting_reward(rows: Sequence[Row], response_key: str) -> Answering:
    """Returns the workflow and reward for rows with these truths."""
    values = [optional_column(row, response_key) for row in rows]
    if (by_source := _by_source(rows)) is not None:
        return by_source
    if all(isinstance(value, Mapping) and "numbers" in value for value in values):
        return Answering("simple_workflow", "countdown_reward", "answers are targets and numbers")
    texts = [_text(value) for value in values]
    for reward, mark, why in (
        ("gsm8k_reward", "####", "answers end with #### and a number"),
        ("math_boxed_reward", "\\boxed", "answers end with a boxed result"),
    ):
        if all(mark in text for text in texts):
            return Answering("simple_workflow", reward, why)
    if sum(map(_is_mathematical, texts)) >= 0.9 * len(texts):
        return Answering(IS_MATHS, None, "answers are numbers or formulas")
    longest = max(len(text.split()) for text in texts)
    if longest <= MOST_WORDS:
        return Answering("simple_workflow", "exact_match_reward", "answers are short texts")
    return Answering(
        "simple_workflow",
        "exact_match_reward",
        f"answers have up to {longest} words, and no reward here judges such texts: name one of "
        "your own (`--reward`), until then they are compared as a whole",
    )


def _by_source(rows: Sequence[Row]) -> Answering | None:
    """Returns the reward by which veRL scores these data sets; None if it is not known."""
    names = {str(row.get(SOURCE, "")) for row in rows}
    try:
        rewards = {row_reward(name) for name in names}
    except UserError:
        return None
    if not all(REWARDS.is_registered(reward) for reward in rewards):
        return None
    why = f"rows come from {', '.join(sorted(names))}"
    if len(rewards) == 1:
        return Answering("simple_workflow", next(iter(rewards)), why)
    default = min(rewards)
    return Answering("simple_workflow", default, why, reward_fn_key=SOURCE)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_mathematical(text: str) -> bool:
    plain = text.strip()
    return NUMBER.fullmatch(plain) is not None or "\\" in plain or plain.startswith("$")


def _with_split(options: DraftOptions, given: GivenOptions, found: list[str]) -> DraftOptions:
    if given.eval_split is not None or not Path(given.taskset).is_dir():
        return options
    for split in EVAL_SPLITS:
        try:
            files = find_data_files(given.taskset, split)
        except UserError:
            continue
        if files and files != find_data_files(given.taskset, "train"):
            found.append(f"the split `{split}` is there to evaluate on")
            return replace(options, eval_split=split)
    return options


def _with_batch(options: DraftOptions, num_rows: int, found: list[str]) -> DraftOptions:
    if num_rows >= BATCH:
        return options
    size = 1 << (num_rows.bit_length() - 1)
    found.append(f"{num_rows} rows make steps of {size} tasks")
    return replace(options, batch_size=size)


def _with_lengths(
    options: DraftOptions, given: GivenOptions, rows: Sequence[Row], found: list[str]
) -> DraftOptions:
    directory = Path(options.model)
    if not directory.is_dir():
        found.append(f"{options.model} is not here: lengths are the usual ones")
        return options
    positions = num_positions(directory)
    prompt, response = LENGTH, LENGTH
    if rows:
        longest, truth = _measured(options, directory, rows)
        if positions is not None and _is_too_long(options, given, longest, positions):
            options = replace(options, workflow="simple_workflow", reward="exact_match_reward")
            found.append(
                f"the instructions of `{IS_MATHS}` do not fit into {positions} positions: "
                "`simple_workflow` with `exact_match_reward`"
            )
            longest, truth = _measured(options, directory, rows)
        prompt = max(64, -(-int(longest * 1.1) // 64) * 64)
        response = max(LENGTH, min(LONGEST, -(-2 * truth // 256) * 256))
        found.append(
            f"prompts of the first {len(rows)} rows have at most {longest} tokens, answers {truth}"
            f"{guess_note(directory)}"
        )
    if positions is not None:
        found.append(f"the model has {positions} positions")
        prompt = min(prompt, positions // 2)
        response = min(response, positions - prompt)
    return replace(options, max_prompt_tokens=prompt, max_response_tokens=response)


def _is_too_long(options: DraftOptions, given: GivenOptions, longest: int, positions: int) -> bool:
    """True if a workflow that was chosen here leaves no room for answers."""
    is_chosen = given.workflow is None and options.workflow == IS_MATHS
    return is_chosen and longest > positions // 2


def _measured(options: DraftOptions, directory: Path, rows: Sequence[Row]) -> tuple[int, int]:
    """Returns the tokens of the longest prompt, in the chat template, and of the longest truth."""
    count, render = token_counter(directory), prompt_counter(directory)
    system = _system_prompt(options.workflow)
    prompts = [list(_messages(optional_column(row, options.prompt_key))) for row in rows]
    longest = sorted(prompts, key=_num_characters)[-NUM_RENDERED:]
    truths = [_text(optional_column(row, options.response_key)) for row in rows]
    answers = sorted(truths, key=len)[-NUM_RENDERED:]
    return (
        max(render(_with_system(prompt, system), count) for prompt in longest),
        max(map(count, answers)),
    )


def _system_prompt(workflow: str) -> str:
    if workflow != IS_MATHS:
        return ""
    from trinity.workflows.math_workflow import SYSTEM_PROMPT

    return SYSTEM_PROMPT


def _messages(prompt: JsonValue) -> Iterator[dict[str, str]]:
    if isinstance(prompt, list):
        for message in prompt:
            if isinstance(message, Mapping):
                yield {
                    "role": str(message.get("role", "user")),
                    "content": _text(message.get("content", "")),
                }
        return
    yield {"role": "user", "content": _text(prompt)}


def _with_system(messages: Sequence[dict[str, str]], system: str) -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, *messages]


def _num_characters(messages: Sequence[dict[str, str]]) -> int:
    return sum(len(message["content"]) for message in messages)


def _looked_into(given: GivenOptions) -> tuple[DraftOptions, tuple[str, ...]]:
    """Looks into tasks, or into rows that the algorithm trains on as they are.

    Raises: UserError, also for options that such an algorithm has no use for.
    """
    is_known = ALGORITHM_TYPES.is_registered(given.algorithm)
    declared = ALGORITHM_TYPES.get(given.algorithm) if is_known else None
    if given.algorithm in ON_ROWS and has_labels(given.taskset):
        declared = ON_ROWS[given.algorithm]
    if declared is None or declared.schema == "experience":
        return look_into(given)
    for option in ("workflow", "reward", "eval_split"):
        if getattr(given, option) is not None:
            raise UserError(
                f"`{given.algorithm}` trains on rows as they are, without rollouts: leave "
                f"--{option.replace('_', '-')} out, or give another --algorithm"
            )
    return look_into_data(_draft(given), declared.schema, given.prompt_key, given.response_key)


def write_draft(output: Path, given: GivenOptions, plugins: Sequence[str] = ()) -> None:
    """Writes the file, unless it exists, and prints the findings and the errors to fix."""
    if output.exists():
        raise UserError(f"{output} exists: give another FILE")
    options, found = _looked_into(given)
    with write_errors(output, "give another FILE"):
        write_new_file(output, draft_config(options), "give another FILE")
    for sentence in found:
        print(f"found: {sentence}")
    for error in check_on_machine(output, {}).errors:
        print(f"fix: {error}")
    command = shlex.join(["trinity", "run", "--config", str(output), *plugins, "--dry-run"])
    print(f"wrote {output}; next: {command}")
