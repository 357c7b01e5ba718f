"""The page Experiences: what the model wrote, what it got for it, token by token."""

from functools import partial
from pathlib import Path

import streamlit as st

from trinity.api.v1 import query_pb2
from trinity.errors import TrinityError
from trinity.inspect.conditions import HELP
from trinity.inspect.samples import state_name
from trinity.studio.connection import require_open, stages_of
from trinity.studio.context import StudioContext, ViewedRun
from trinity.studio.experiences import (
    NOT_RECORDED,
    PAGE_ROWS,
    ExperienceRow,
    ShownMessage,
    TurnTokens,
    WholeExperience,
    conversation_of,
    group_of,
    list_experiences,
    new_messages,
    split_conditions,
    whole_experience,
)
from trinity.studio.models import model_of
from trinity.studio.pages.changing import show_changes
from trinity.studio.pages.common import (
    PAGE,
    chosen_stage,
    is_open,
    open_page,
    page_number,
    turn_pages,
)
from trinity.studio.plain_text import (
    joined,
    number_text,
    one_line,
    plain_text,
    seconds_text,
    time_text,
)
from trinity.studio.tokens import WINDOW_TOKENS, colors_of, read_tokenizer, token_strip
from trinity.studio.widgets import (
    Column,
    Row,
    show_long_text,
    show_problem,
    show_table,
    show_tokens,
)

WHERE, SAMPLE = "where", "id"
"""Parameters of the address: what is shown can be linked, and gone back to."""
COLUMNS = (
    Column("reward", "number"),
    Column("advantage", "number"),
    Column("weights", "number"),
    Column("trained", "number"),
    Column("task"),
    Column("run", "number"),
    Column("turn", "number"),
    Column("tokens", "number"),
    Column("end"),
    Column("state"),
    Column("response", "text"),
)
SYSTEM = "system"
TABLE_HEIGHT = 360
"""In pixels: ten rows, so that the chosen experience is seen below them."""
TABS = ("Tokens", "Conversation", "Group", "Details")
SIDE_BY_SIDE = 64
"""Samples of a group on one page."""
TABS_WITH_CHANGES = ("Tokens", "Conversation", "Group", "Details", "Change")
NO_ROWS = "No experience satisfies these conditions. Experiences come with the first explore step."


def show() -> None:
    """Shows the page."""
    st.title("Experiences", anchor=False)
    opened = open_page("")
    if opened is None:
        return
    context, viewed, _ = opened
    if not is_open(viewed):
        return
    try:
        _show_stored(context, viewed)
    except (TrinityError, TimeoutError) as error:
        show_problem(error)


def _show_stored(context: StudioContext, viewed: ViewedRun) -> None:
    stages = context.wait_for(stages_of(require_open(viewed.connection)))
    if not stages:
        st.text(NO_ROWS)
        return
    stage = chosen_stage(stages, forget=(SAMPLE, PAGE))
    st.text(plain_text(_counts(stage)))
    conditions = _conditions()
    found = context.wait_for(
        list_experiences(require_open(viewed.connection), stage.key, conditions, page=page_number())
    )
    with st.container(height=TABLE_HEIGHT, border=False):
        picked = show_table(
            "Experiences",
            COLUMNS,
            [experience_cells(row) for row in found.rows],
            key="experiences",
            empty=NO_ROWS,
            selectable=True,
            selected=st.query_params.get(SAMPLE, ""),
        )
    if picked is not None:
        st.query_params[SAMPLE] = picked
    more = ", the newest first, and more follow" if found.has_more else ", the newest first"
    turn_pages(len(found.rows), has_more=found.has_more, page_rows=PAGE_ROWS, remark=more)
    if chosen := st.query_params.get(SAMPLE):
        _show_sample(context, viewed, stage, chosen, conditions)


def _counts(stage: query_pb2.StoredStage) -> str:
    numbers: dict[str, int] = {}
    for count in stage.counts:
        name = state_name(count.state)
        numbers[name] = numbers.get(name, 0) + count.count
    held = (f"{number:,} {name}" for name, number in numbers.items() if name != "derived")
    return joined([f"stage {stage.key.stage}", *held]) if numbers else NO_ROWS


def _conditions() -> list[str]:
    """Shows the filter; its words are those of `trinity view`."""
    before = st.query_params.get(WHERE, "")
    with st.form("filter", border=False):
        field, button = st.columns([6, 1], vertical_alignment="bottom")
        words: str = field.text_input(
            "Conditions",
            value=before,
            placeholder="reward=..0.5 version=3..5 task=train:12 state=filtered text=answer",
            help=HELP,
        )
        button.form_submit_button("Filter", width="stretch")
    if words != before:
        st.query_params.pop(PAGE, None)
        st.query_params.pop(SAMPLE, None)
    st.query_params[WHERE] = words
    return split_conditions(words)


def _show_sample(
    context: StudioContext,
    viewed: ViewedRun,
    stage: query_pb2.StoredStage,
    sample: str,
    conditions: list[str],
) -> None:
    services = require_open(viewed.connection)
    whole = context.wait_for(whole_experience(services, stage.key, sample))
    group = context.wait_for(group_of(services, stage.key, whole.row))
    st.subheader("Experience", divider="gray", anchor=False)
    st.text(plain_text(_facts(whole)))
    tokens, conversation, others, details, *change = st.tabs(
        TABS_WITH_CHANGES if context.options.allows_changes else TABS
    )
    with tokens:
        _show_tokens(whole, viewed, stage.key.stage)
    with conversation:
        model = model_of(viewed.connection.job_dir, stage.key.stage)
        _show_conversation(conversation_of(group, whole.row), model)
    with others:
        _show_group(group, whole.row)
    with details:
        _show_details(whole)
    for tab in change:
        with tab:
            show_changes(context, viewed, stage.key, whole.row.id, conditions)


def _facts(whole: WholeExperience) -> str:
    row = whole.row
    return joined(
        [
            row.id[:8],
            f"task {row.task}",
            f"reward {number_text(row.reward) or NOT_RECORDED}",
            f"advantage {number_text(row.advantage, is_signed=True) or NOT_RECORDED}",
            f"weights {row.versions}",
            *(f"trained in step {step}" for step in row.train_steps),
            f"{row.response_length:,} tokens",
            f"ended by {row.end}",
            f"run took {seconds_text(whole.run_seconds)}",
            row.reason,
        ]
    )


def _show_tokens(whole: WholeExperience, viewed: ViewedRun, stage: str) -> None:
    colors = colors_of(whole)
    if not colors:
        st.text(plain_text(f"Its content is {whole.why_no_content}."))
        return
    place = st.selectbox(
        "Colour", range(len(colors)), format_func=lambda place: plain_text(colors[place])
    )
    total = whole.row.response_length
    first = 0
    if total > WINDOW_TOKENS:
        first = st.slider("First token", 0, total - 1, step=WINDOW_TOKENS)
        st.text(f"{WINDOW_TOKENS:,} of {total:,} tokens are shown.")
    model = model_of(viewed.connection.job_dir, stage)
    strip = token_strip(whole, model, color=colors[place], first=first)
    if strip.note:
        st.text(plain_text(strip.note))
    show_tokens("Tokens of the response", strip, colors[place], key="tokens")
    st.text(plain_text(f"{strip.scale}; dotted: not chosen by the policy, not trained on"))


def _show_conversation(turns: tuple[ExperienceRow, ...], model: Path | None) -> None:
    """Shows each turn's messages by their roles; whole texts where roles or a tokenizer lack."""
    tokenizer = read_tokenizer(model) if model is not None else None
    before: TurnTokens | None = None
    for turn in turns:
        st.text(plain_text(_turn_head(turn)))
        if turn.content is None or tokenizer is None:
            _show_whole_turn(turn)
        else:
            decode = partial(tokenizer.decode, skip_special_tokens=False)
            for message in new_messages(before, turn.content, decode):
                _show_message(message)
        before = turn.content


def _turn_head(turn: ExperienceRow) -> str:
    return joined(
        [
            f"turn {turn.turn}",
            f"weights {turn.versions}",
            f"reward {number_text(turn.reward) or NOT_RECORDED}",
            f"advantage {number_text(turn.advantage, is_signed=True) or NOT_RECORDED}",
        ]
    )


def _show_whole_turn(turn: ExperienceRow) -> None:
    roles = NOT_RECORDED if turn.content is None else "recorded, but there is no tokenizer here"
    st.text(plain_text(f"Prompt; roles of its messages: {roles}"))
    show_long_text(turn.prompt or NOT_RECORDED)
    st.text("Response")
    show_long_text(turn.response or NOT_RECORDED)


def _show_message(message: ShownMessage) -> None:
    """Shows a message; that of the system is folded, as it is long and always the same."""
    if message.role == SYSTEM:
        with st.expander("system"):
            show_long_text(message.text)
        return
    st.text(plain_text(f"{message.role}, {message.num_tokens:,} tokens"))
    show_long_text(message.text)


def _show_group(group: tuple[ExperienceRow, ...], chosen: ExperienceRow) -> None:
    if group:
        st.text("Prompt")
        show_long_text(group[0].prompt or NOT_RECORDED)
    if len(group) > SIDE_BY_SIDE:
        st.text(f"{SIDE_BY_SIDE} of {len(group):,} samples are shown.")
    columns = st.columns(2)
    for place, row in enumerate(group[:SIDE_BY_SIDE]):
        with columns[place % 2]:
            mark = "this one" if row.id == chosen.id else ""
            turn = f"turn {row.turn}" if row.turn else ""
            st.text(
                plain_text(
                    joined(
                        [
                            f"run {row.run}",
                            turn,
                            f"reward {number_text(row.reward) or NOT_RECORDED}",
                            f"advantage {number_text(row.advantage, is_signed=True)}",
                            mark,
                        ]
                    )
                )
            )
            show_long_text(row.response or NOT_RECORDED)


def _show_details(whole: WholeExperience) -> None:
    row = whole.row
    rows = [
        ("id", row.id),
        ("explored", f"step {row.explore_step}, position {row.position}, run {row.run}"),
        ("attempt", str(row.attempt)),
        ("state", joined([row.state, row.reason])),
        *((f"metric {name}", f"{value:.4g}") for name, value in sorted(whole.metrics.items())),
    ]
    if whole.sample is not None:
        rows += [
            *(
                (f"reward {name}", f"{part:.4g}")
                for name, part in whole.sample.reward_parts.items()
            ),
            ("trace", whole.sample.trace_id or NOT_RECORDED),
            ("info", str(whole.sample.info)),
        ]
    rows += [
        (change.what, joined([time_text(change.unix_millis), f"by {change.by}", change.reason]))
        for change in whole.changes
    ]
    for use in whole.uses:
        ratio = f"{use.mean_ratio:.4g}" if use.HasField("mean_ratio") else NOT_RECORDED
        rows.append((f"step {use.step}", f"weight {use.weight:.4g}, mean ratio {ratio}"))
    show_table(
        "Details",
        (Column("what"), Column("value", "wrap")),
        [Row(f"{place}", (name, value)) for place, (name, value) in enumerate(rows)],
        key="details",
        empty=NOT_RECORDED,
    )


def experience_cells(row: ExperienceRow) -> Row:
    """Converts an experience to a row of the table."""
    return Row(
        id=row.id,
        cells=(
            number_text(row.reward),
            number_text(row.advantage, is_signed=True),
            row.versions,
            ", ".join(map(str, row.train_steps)),
            row.task,
            str(row.run),
            str(row.turn),
            f"{row.response_length:,}",
            row.end,
            row.state,
            one_line(row.preview or row.reason),
        ),
    )
