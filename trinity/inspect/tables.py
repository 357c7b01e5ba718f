"""Tables of samples, steps and populations for a terminal; untrusted text is made safe."""

import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.data.codec import experience_from_proto
from trinity.data.samples import finish_reason_name, state_name
from trinity.inspect.session_tree import COLUMNS, ID_DIGITS, SessionTree
from trinity.run.progress.view import change_text
from trinity.runtime.control_characters import ESCAPED
from trinity.types import Experience, Pair
from trinity.types import Sequence as TokenSequence

_STEERING = {code: text for code, text in ESCAPED.items() if chr(code) not in "\n\t"}
HASH_DIGITS = 12
NONE = "-"
UNPUBLISHED = "not published"
LINE_WIDTH = 200
"""Maximum width when the output is not a terminal and lines must not be broken."""
SHIFT_REMARK = "differs from what was left out by more than chance"
TASK_SHIFT_REMARK = "some tasks lost more of their runs than by chance"
NO_MEAN = ""
RunPlace = tuple[str, int, int]


def sanitize_terminal(text: str) -> str:
    """Escapes terminal control characters, except newlines and tabs."""
    return text.translate(_STEERING)


def console() -> Console:
    """Returns a console of the terminal's width, or one that does not break lines."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=LINE_WIDTH)


def run_of(record: query_pb2.ExperienceRecord) -> RunPlace:
    """Returns the key that is common to all samples of one run."""
    return record.assignment_id, record.eid.run, record.eid.attempt


def sample_table(records: Iterable[query_pb2.ExperienceRecord]) -> Table:
    """Returns a table with one line per sample; those of one run stand below its first."""
    table = _table("id", "explored", "task", "state", "reward", "advantage", "weights")
    for name in ("tokens", "end", "trained"):
        table.add_column(name, no_wrap=True)
    table.add_column("response", no_wrap=True, overflow="ellipsis", ratio=1)
    before: RunPlace | None = None
    for record in records:
        run = run_of(record)
        begin = _begin(record)
        if run == before and record.eid.step:  # a later turn of the same run
            begin = (begin[0], f"  turn {record.eid.step}", "")
        before = run
        table.add_row(
            *begin,
            state_name(record.state),
            *_values(record),
            ", ".join(f"step {use.step}" for use in record.uses) or NONE,
            _one_line(record),
        )
    return table


def step_table(rows: Iterable[query_pb2.StepRow]) -> Table:
    """Returns a table with one line per row of the batch."""
    table = _table("row", "id", "explored", "task", "reward", "advantage", "weights")
    for name in ("tokens", "end", "used advantage", "ratio"):
        table.add_column(name, no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        use = row.use
        learned = (
            _number(use.trained_advantage) if use.HasField("trained_advantage") else NONE,
            _number(use.mean_ratio) if use.HasField("mean_ratio") else NONE,
        )
        if row.WhichOneof("source") == "experience":
            cells = (*_begin(row.experience), *_values(row.experience))
        else:
            cells = (NONE, "data", str(row.row_index), *[NONE] * 5)
        table.add_row(str(use.position), *cells, *learned, _text(row.row_json))
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _begin(record: query_pb2.ExperienceRecord) -> tuple[str, str, str]:
    eid = record.eid
    place = f"{eid.explore_step}/{eid.position}/{eid.run}"
    turn = f".{eid.step}" if eid.step else ""
    task = sanitize_terminal(f"{record.taskset}:{record.task_index}")
    return record.id[:ID_DIGITS], place + turn, escape(task)


def _rewards(record: query_pb2.ExperienceRecord) -> str:
    """Returns the reward that came, and after an arrow the one that an operator made of it."""
    came = _number(record.reward) if record.HasField("reward") else NONE
    has_other = record.HasField("shaped_reward")
    return f"{came} -> {_number(record.shaped_reward)}" if has_other else came


def _values(record: query_pb2.ExperienceRecord) -> tuple[str, ...]:
    return (
        _rewards(record),
        _number(record.advantage) if record.HasField("advantage") else NONE,
        versions(record),
        str(record.response_length),
        finish_reason_name(record.finish_reason),
    )


def versions(record: query_pb2.ExperienceRecord) -> str:
    """Formats the weights that made it: `3`, or `3-5` if they changed on the way."""
    if not record.HasField("version_min"):
        return NONE
    first, last = record.version_min, record.version_max
    return str(first) if first == last else f"{first}-{last}"


def _one_line(record: query_pb2.ExperienceRecord) -> Text:
    if record.reason and not record.uses:
        return _text(f"({record.reason})", style="italic")
    if not record.HasField("content"):
        return Text("(content removed)" if record.content_removed else "", style="italic")
    content = record.content
    side = content.sequence if content.HasField("sequence") else content.pair.chosen
    return _text(json.dumps(side.response_text, ensure_ascii=False)[1:-1])


def _text(text: str, style: str = "") -> Text:
    """Formats untrusted text."""
    return Text(sanitize_terminal(text), style=style)


def _number(value: float) -> str:
    return f"{value:.4g}"


def step_header(stage: str, head: query_pb2.StepHead) -> str:
    """Describes the weights before and after a step, and its trainer."""
    again = f", trained {len(head.trained)} times" if len(head.trained) > 1 else ""
    lives = f"trainer {head.trained[-1].incarnation}" if head.trained else "not trained yet"
    before = _weights(head.weights_before) if head.HasField("weights_before") else UNPUBLISHED
    after = _weights(head.weights_after) if head.HasField("weights_after") else UNPUBLISHED
    return (
        f"step {head.step} of stage {stage}: {head.num_rows} rows, {lives}{again}\n"
        f"weights {before} -> {after}{_rows_from(head)}{_changes(head)}"
    )


def _changes(head: query_pb2.StepHead) -> str:
    """Lists the settings that hold for the step and did not at the beginning of the stage."""
    texts = (escape(sanitize_terminal(change_text(change))) for change in head.changes)
    return "".join(f"\nchanged {text}" for text in texts)


def _rows_from(head: query_pb2.StepHead) -> str:
    if not head.HasField("rows_from"):
        return ""
    run = f" of run {head.rows_from_run}" if head.rows_from_run else ""
    return f"\nsamples of stage {head.rows_from.stage}{run}"


def _weights(version: buffer_pb2.PublishedVersion) -> str:
    root = version.weights_blake3 or version.weights_sha256
    return f"version {version.version} ({root.hex()[:HASH_DIGITS]})"


def sample_details(answer: query_pb2.GetExperienceResponse) -> RenderableType:
    """Shows everything about one sample."""
    record = answer.experience
    parts: list[RenderableType] = [_facts(answer)]
    if not record.HasField("content"):
        why = record.content_removed or "deleted"
        return Group(*parts, _text(f"its content is {why}", style="italic"))
    sample = experience_from_proto(record.content)
    if sample.info:
        parts.append(_text(f"info  {json.dumps(sample.info, ensure_ascii=False)}"))
    for image in sample.blobs:
        parts.append(
            _text(f"{image.name}  {image.media_type}, {image.size:,} bytes, {image.sha256.hex()}")
        )
    body = sample.body
    if isinstance(body, Pair):
        named = [("chosen", body.chosen), ("rejected", body.rejected)]
    else:
        named = [("response", body)]
    parts += [Text("\nprompt", style="bold"), _text(named[0][1].prompt_text)]
    for name, sequence in named:
        parts += [Text(f"\n{name}", style="bold"), _text(sequence.response_text)]
        parts += [Text(""), _tokens(sample, sequence)]
    return Group(*parts)


def session_table(tree: SessionTree) -> Table:
    """Shows the tree of a session, a line for each turn."""
    table = _table(*COLUMNS[:-2])
    for name in COLUMNS[-2:]:
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1)
    table.title, table.title_justify, table.title_style = (
        f"\nsession: {tree.summary}",
        "left",
        "bold",
    )
    for row in tree.rows:
        table.add_row(*(_text(json.dumps(cell, ensure_ascii=False)[1:-1]) for cell in row))
    return table


def _change(change: query_pb2.SampleChange) -> str:
    """Formats a person's change as `2026-05-04 10:11 by ann: leaked answers`."""
    at = datetime.fromtimestamp(change.unix_millis / 1000, UTC).astimezone()
    reason = f": {change.reason}" if change.reason else ""
    return f"{at:%Y-%m-%d %H:%M} by {change.by}{reason}"


def _facts(answer: query_pb2.GetExperienceResponse) -> Table:
    record = answer.experience
    eid = record.eid
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    reason = f": {record.reason}" if record.reason else ""
    shown: Sequence[tuple[str, str]] = (
        ("sample", record.id),
        ("revision of", record.parent_id),
        (
            "explored",
            f"stage {eid.stage}, explore step {eid.explore_step}, position {eid.position}, run "
            f"{eid.run}, attempt {eid.attempt}, step {eid.step}; {answer.run_seconds:.2f} s",
        ),
        ("task", f"{record.taskset}:{record.task_index}"),
        ("state", f"{state_name(record.state)}{reason}"),
        ("reward", _number(record.reward) if record.HasField("reward") else NONE),
        (
            "shaped reward",
            _number(record.shaped_reward) if record.HasField("shaped_reward") else "",
        ),
        ("metrics", _named(dict(record.metrics) | dict(answer.run_metrics))),
        ("advantage", _number(record.advantage) if record.HasField("advantage") else NONE),
        ("weights", versions(record)),
        ("end", finish_reason_name(record.finish_reason)),
        ("digest", record.turn_sha256[-1].hex() if record.turn_sha256 else ""),
        *(("trained", _use(use)) for use in record.uses),
        *((change.what, _change(change)) for change in answer.changes),
    )
    for name, value in shown:
        if value:
            facts.add_row(name, _text(value))
    return facts


def _named(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in sorted(metrics.items()))


def _use(use: query_pb2.BatchUse) -> str:
    learned = ""
    if use.HasField("mean_ratio"):
        learned = (
            f", used advantage {_number(use.trained_advantage)}, ratio {_number(use.mean_ratio)}"
        )
    return (
        f"step {use.step}, row {use.position}, advantage {_number(use.advantage)}, "
        f"weight {_number(use.weight)}{learned}"
    )


def _tokens(sample: Experience, sequence: TokenSequence) -> Table:
    """Lists every token after the prompt; only those that the policy chose are trained on."""
    table = _table("token", "id", "chosen", "log-probability", "weights")
    start = sequence.prompt_length
    prompt = " ".join(map(str, sequence.tokens[:start].tolist()))
    table.title = f"{start} tokens of the prompt: {prompt}"
    table.title_justify = "left"
    made_by = {
        place: f"{span.version} of trainer {span.incarnation}"
        for span in sample.version_spans
        for place in range(span.start, span.end)
    }
    for place in range(sequence.response_length):
        chosen = bool(sequence.action_mask[place])
        table.add_row(
            str(place),
            str(sequence.tokens[start + place]),
            "yes" if chosen else "no",
            f"{sequence.rollout_logprobs[place]:.4f}" if chosen else NONE,
            made_by.get(place, NONE),
        )
    return table


def population_lines(stage: str, population: query_pb2.GetPopulationResponse) -> list[str]:
    """Describes how many generated samples were trained on, and why the rest was not."""
    first, last = population.first_explore_step, population.last_explore_step
    steps = f"explore step {last}" if first == last else f"explore steps {first} to {last}"
    lines = [
        f"{escape(stage)}, {steps}: {population.num_runs:,} runs gave {population.num_generated:,} "
        f"samples, {population.num_trained:,} of them were trained on"
    ]
    for group in population.left_out:
        why = escape(sanitize_terminal(group.reason)) or state_name(group.state)
        lines.append(f"  {group.count:,} were left out: {why}")
    return lines


def population_table(population: query_pb2.GetPopulationResponse) -> Table:
    """Compares the means and distributions of both."""
    table = Table("of all samples", "generated: mean", "trained: mean", "shift (0 to 1)", "")
    for comparison in population.comparisons:
        table.add_row(
            escape(sanitize_terminal(comparison.name.replace("_", " "))),
            _mean(comparison.generated_mean),
            _mean(comparison.trained_mean),
            f"{comparison.shift:.3f}",
            _remark(comparison),
        )
    return table


def _remark(comparison: query_pb2.Comparison) -> str:
    if not comparison.is_significant:
        return ""
    return TASK_SHIFT_REMARK if comparison.name == "task" else SHIFT_REMARK


def _mean(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else NO_MEAN
