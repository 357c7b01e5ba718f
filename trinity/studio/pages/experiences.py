"""The page Experiences: responses of the model and their rewards, token by token."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import streamlit as st

from trinity.data.samples import held_samples
from trinity.run.conditions import HELP
from trinity.studio.conversation import ConversationTurn, conversation_line, conversation_turns
from trinity.studio.drawings import show_conversation, show_tokens
from trinity.studio.experiences import (
    NOT_RECORDED,
    ExperiencePage,
    ExperienceRow,
    TextSearch,
    WholeExperience,
    conversation_of,
    count_experiences,
    group_of,
    list_experiences,
    names_a_text,
    split_conditions,
    whole_experience,
)
from trinity.studio.pages.changing import show_changes
from trinity.studio.pages.common import (
    PAGE,
    PAGE_ROWS,
    StagePage,
    page_number,
    remembered,
    show_choice,
    show_prompt,
    show_response,
    show_stage,
    turn_pages,
)
from trinity.studio.pictures import Thumbnail, pictures_of, show_pictures
from trinity.studio.plain_text import (
    joined,
    number_text,
    one_line,
    plain_text,
    reward_text,
    seconds_text,
    time_text,
)
from trinity.studio.scores import MANY_SECONDS
from trinity.studio.tokens import WINDOW_TOKENS, colors_of, model_of, token_strip
from trinity.studio.widgets import Column, Row, show_rows, show_text
from trinity.types import BlobRef

WHERE, SAMPLE = "where", "id"
"""Parameters of the address, so that the view can be linked and restored."""
COLUMNS = (
    Column("Reward", "number"),
    Column("Advantage", "number"),
    Column("Weights", "number"),
    Column("Train step", "number"),
    Column("Task"),
    Column("Run", "number"),
    Column("Turn", "number"),
    Column("Tokens", "number"),
    Column("Ended by"),
    Column("State"),
    Column("Response", "text"),
)
SESSION_COLUMNS = (
    Column("Turn", "tree"),
    Column("After", "number"),
    Column("Weights", "number"),
    Column("Tokens", "number"),
    Column("Sample", "code"),
    Column("Asked"),
    Column("Answer", "text"),
)
"""Those of the rows of `session_tree`."""
SEARCH_KEY = "_text_search"
"""Key of the session: the last search for a text, with its conditions."""
COUNT_KEY = "_count"
"""Key of the session: the last count of experiences, with its conditions."""
PICTURES_KEY = "_pictures"
"""Key of the session: the pictures of the last conversation that was chosen."""
TABLE_HEIGHT = 360
"""In pixels: ten rows, so that the chosen experience is seen below them."""
TABS = ("Tokens", "Conversation", "Group", "Details")
SIDE_BY_SIDE = 64
"""Samples of a group on one page."""
TABS_WITH_CHANGES = ("Tokens", "Conversation", "Group", "Details", "Change")
NO_ROWS = "No experience satisfies these conditions."
NONE_YET = "There is no experience yet. Experiences come with the first explore step."


def show() -> None:
    """Shows the page."""
    st.title("Experiences", anchor=False)
    show_stage(_show_stored, empty=NONE_YET, forget=(SAMPLE, PAGE))


def _show_stored(page: StagePage) -> None:
    held = held_samples(page.stage)
    show_text(joined(f"{number:,} {name}" for name, number in held.items()) or NONE_YET)
    conditions = _conditions()
    found = _found(page, conditions)
    chosen = show_choice(
        "Experiences",
        COLUMNS,
        [experience_cells(row) for row in found.rows],
        parameter=SAMPLE,
        key="experiences",
        empty=NO_ROWS,
        height=TABLE_HEIGHT,
    )
    number = _number_text(page, conditions, found)
    turn_pages(len(found.rows), has_more=found.has_more, remark=f"{number}, the newest first")
    if chosen:
        _show_sample(page, chosen, conditions)


def _found(page: StagePage, conditions: list[str]) -> ExperiencePage:
    """Returns the page of the experiences that satisfy the conditions."""
    services, number = page.services, page_number()
    if not names_a_text(conditions):
        return page.wait_for(
            list_experiences(services, page.key, conditions, page=number, page_rows=PAGE_ROWS)
        )
    asked = (page.identity, tuple(conditions))  # its rows are kept until the conditions change
    search = remembered(SEARCH_KEY, asked, lambda: TextSearch(conditions=tuple(conditions)))
    first = number * PAGE_ROWS
    wanted = first + PAGE_ROWS + 1
    total = sum(count.count for count in page.stage.counts)
    place = st.empty()
    while not search.is_done and len(search.rows) < wanted:
        share = min(search.num_examined / total, 1.0) if total else 0.0
        with place.container():  # another filter breaks the search off here
            st.progress(value=share)
            show_text(examined_text(search, total))
        page.wait_for(search.go_on(services, page.key, wanted=wanted), MANY_SECONDS)
    place.empty()
    show_text(examined_text(search, total))
    rows = tuple(search.rows[first : first + PAGE_ROWS])
    return ExperiencePage(rows=rows, has_more=len(search.rows) > first + PAGE_ROWS)


def examined_text(search: TextSearch, total: int) -> str:
    """Says how far a search is."""
    if search.is_done:
        return f"{len(search.rows):,} found; all were looked at"
    newest = f"the newest {search.num_examined:,} of about {total:,}"
    return f"{len(search.rows):,} found so far in {newest}"


def _number_text(page: StagePage, conditions: list[str], found: ExperiencePage) -> str:
    """Says how many experiences satisfy the conditions, as far as that is known soon."""
    shown = page_number() * PAGE_ROWS + len(found.rows)
    if not found.has_more:
        return f" of {shown:,}"
    if names_a_text(conditions):
        return ", and more follow"
    if not conditions:
        held = held_samples(page.stage)
        return f" of about {sum(held.values()) - held.get('eval', 0):,}"
    counted = remembered(
        COUNT_KEY,
        (page.identity, page.counts, tuple(conditions)),
        lambda: page.wait_for(count_experiences(page.services, page.key, conditions)),
    )
    if counted.is_all:
        return f" of {counted.number:,}"
    return f" of more than {max(counted.number, shown):,}"


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
        if button.form_submit_button("Filter", width="stretch"):
            st.session_state.pop(SEARCH_KEY, None)  # asked again, newer ones count
    if words != before:
        st.query_params.pop(PAGE, None)
        st.query_params.pop(SAMPLE, None)
    st.query_params[WHERE] = words
    return split_conditions(words)


def _show_sample(page: StagePage, sample: str, conditions: list[str]) -> None:
    whole = page.wait_for(whole_experience(page.services, page.key, sample))
    group = page.wait_for(group_of(page.services, page.key, whole.row))
    model = model_of(page.viewed.connection.job_dir, page.name)
    st.subheader("Experience", divider="gray", anchor=False)
    show_text(_facts(whole))
    turns = conversation_turns(conversation_of(group, whole.row), model)
    pictures = _pictures(page, whole.row, turns)
    if whole.row.images:
        show_pictures(pictures, whole.row.images)
    tokens, conversation, others, details, *change = st.tabs(
        TABS_WITH_CHANGES if page.context.options.allows_changes else TABS
    )
    with tokens:
        _show_tokens(whole, model)
    with conversation:
        if whole.session is not None:
            show_text(f"session: {whole.session.summary}")
            show_rows("Session", SESSION_COLUMNS, whole.session.rows)
        _show_conversation(turns, pictures)
    with others:
        _show_group(group, whole.row)
    with details:
        _show_details(whole)
    for tab in change:
        with tab:
            show_changes(page, whole.row.id, conditions)


def _facts(whole: WholeExperience) -> str:
    row = whole.row
    return joined(
        [
            row.id[:8],
            f"task {row.task}",
            f"reward {reward_text(row.reward, row.shaped_reward) or NOT_RECORDED}",
            f"advantage {number_text(row.advantage, is_signed=True) or NOT_RECORDED}",
            f"weights {row.versions}",
            *(f"trained in step {step}" for step in row.train_steps),
            f"{row.response_length:,} tokens",
            f"ended by {row.end}",
            f"run took {seconds_text(whole.run_seconds)}",
            row.reason,
        ]
    )


def _pictures(
    page: StagePage, row: ExperienceRow, turns: Sequence[ConversationTurn]
) -> Mapping[BlobRef, Thumbnail]:
    """Returns the pictures of a sample and of its conversation."""
    of_turns = (own for turn in turns for message in turn.messages for own in message.images)
    images = (*row.images, *of_turns)
    return remembered(
        PICTURES_KEY,
        (page.identity, images),
        lambda: page.wait_for(pictures_of(page.services, images), MANY_SECONDS),
    )


def _show_tokens(whole: WholeExperience, model: Path | None) -> None:
    colors = colors_of(whole)
    if not colors:
        show_text(f"Its content is {whole.why_no_content}.")
        return
    place = st.selectbox(
        "Colour", range(len(colors)), format_func=lambda place: plain_text(colors[place])
    )
    total = whole.row.response_length
    first = 0
    if total > WINDOW_TOKENS:
        first = st.slider("First token", 0, total - 1, step=WINDOW_TOKENS)
        show_text(f"{WINDOW_TOKENS:,} of {total:,} tokens are shown.")
    strip = token_strip(whole, model, color=colors[place], first=first)
    if strip.note:
        show_text(strip.note)
    show_tokens("Tokens of the response", strip, colors[place], key="tokens")
    show_text(f"{strip.scale}; dotted: not chosen by the policy, not trained on")


def _show_conversation(
    turns: Sequence[ConversationTurn], pictures: Mapping[BlobRef, Thumbnail]
) -> None:
    show_text(conversation_line(turns))
    show_conversation("Conversation", turns, pictures, key="conversation")


def _show_group(group: tuple[ExperienceRow, ...], chosen: ExperienceRow) -> None:
    if group:
        show_prompt(group)
    if len(group) > SIDE_BY_SIDE:
        show_text(f"{SIDE_BY_SIDE} of {len(group):,} samples are shown.")
    columns = st.columns(2)
    for place, row in enumerate(group[:SIDE_BY_SIDE]):
        with columns[place % 2]:
            facts = [
                f"run {row.run}",
                f"turn {row.turn}" if row.turn else "",
                f"reward {reward_text(row.reward, row.shaped_reward) or NOT_RECORDED}",
                f"advantage {number_text(row.advantage, is_signed=True)}",
                "this one" if row.id == chosen.id else "",
            ]
            show_response(row, facts)


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
            ("info", json.dumps(whole.sample.info, ensure_ascii=False)),
        ]
    rows += [
        (change.what, joined([time_text(change.unix_millis), f"by {change.by}", change.reason]))
        for change in whole.changes
    ]
    for use in whole.uses:
        ratio = f"{use.mean_ratio:.4g}" if use.HasField("mean_ratio") else NOT_RECORDED
        rows.append((f"step {use.step}", f"weight {use.weight:.4g}, mean ratio {ratio}"))
    show_rows("Details", (Column("What"), Column("Value", "wrap")), rows)


def experience_cells(row: ExperienceRow) -> Row:
    """Converts an experience to a row of the table."""
    return Row(
        id=row.id,
        cells=(
            reward_text(row.reward, row.shaped_reward),
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
