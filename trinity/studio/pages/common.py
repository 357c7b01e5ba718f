"""Parts that several pages share: the chosen run, its head, and waiting until it is open."""

import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import streamlit as st

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.errors import TrinityError
from trinity.studio.connection import OpenRun, Phase, require_open, stages_of
from trinity.studio.context import (
    ANSWER_SECONDS,
    StudioContext,
    ViewedRun,
    studio_context,
)
from trinity.studio.experiences import NOT_RECORDED, ExperienceRow
from trinity.studio.plain_text import joined, plain_text
from trinity.studio.runs import RunEntry, describe_run, find_runs, list_runs
from trinity.studio.system import describe_experiment, is_experiment_id, list_experiments
from trinity.studio.widgets import (
    Column,
    Row,
    show_box,
    show_long_text,
    show_problem,
    show_table,
    show_text,
)

RUN = "run"
"""Parameter of the address: the directory of the run."""
LAST_RUN = "_run"
"""Key of the session: the run of the page before, since a change of page empties the address."""
STAGE, PAGE = "stage", "page"
"""Further parameters: the name of the stage, and the page of a table from 1."""
BUSY = "Your other pages are being made: this one follows when it is loaded again."
Params = ParamSpec("Params")
ValueT = TypeVar("ValueT")
READING = "The run's events are being read."
MAX_PAGE = 100_000
PAGE_ROWS = 50
"""Rows on one page of a table."""
REFRESH_SECONDS = 2.0
OPENING_SECONDS = 0.5


def in_turn(draw: Callable[Params, None]) -> Callable[Params, None]:
    """Returns a function that draws when it is the visitor's turn: pages share the processor."""

    @functools.wraps(draw)
    def drawn(*args: Params.args, **kwargs: Params.kwargs) -> None:
        try:
            with studio_context().turn() as has_turn:
                if has_turn:
                    draw(*args, **kwargs)
                else:
                    show_text(BUSY)
        except TrinityError as error:
            show_problem(error)

    return drawn


def live_part(draw: Callable[Params, None], seconds: float | None = None) -> Callable[Params, None]:
    """Returns a part of a page that is drawn alone, and again after `seconds`."""
    part: Callable[Params, None] = st.fragment(in_turn(draw), run_every=seconds)
    return part


def chosen_run(context: StudioContext) -> Path | None:
    """Returns the named run, or the newest, if any.

    Only runs below the places that Studio was started with can be named.
    """
    found, named = find_runs(context.places), named_run()
    if named is None:
        return found[0] if found else None
    return Path(named) if Path(named) in found else None


def named_run() -> str | None:
    """Returns the run that the address names, or that of the page before."""
    before: str | None = st.session_state.get(LAST_RUN)
    return st.query_params.get(RUN) or before


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """A page about one run, as its parts get it."""

    context: StudioContext
    viewed: ViewedRun

    @property
    def services(self) -> OpenRun:
        """The services of the run; raises UserError with the reason why they are not open."""
        return require_open(self.viewed.connection)

    def wait_for(
        self, work: Coroutine[object, object, ValueT], seconds: float = ANSWER_SECONDS
    ) -> ValueT:
        """Returns the answer to a question to the services.

        Raises: TimeoutError.
        """
        return self.context.wait_for(work, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePage(RunPage):
    """A page about one stage of a run."""

    stage: query_pb2.StoredStage

    @property
    def key(self) -> buffer_pb2.StageKey:
        """The key of the stage."""
        return self.stage.key

    @property
    def name(self) -> str:
        """The name of the stage."""
        return self.stage.key.stage

    @property
    def identity(self) -> tuple[str, bytes]:
        """The visitor and the stage: another visitor may not see what was answered to this one."""
        return self.context.visitor().key, self.stage.key.SerializeToString()

    @property
    def counts(self) -> tuple[tuple[int, str, int], ...]:
        """Changes when samples are stored or change their state."""
        return tuple((known.state, known.reason, known.count) for known in self.stage.counts)


def show_run(draw: Callable[[RunPage], None], *, with_history: bool = False) -> RunPage | None:
    """Shows a page about one run: its head, and the rest once the run is open.

    With history, it also waits for the events that are stored. Returns the run if it is open.
    """
    page = open_page()
    if page is None or not is_open(page.viewed, with_history=with_history):
        return None
    try:
        draw(page)
    except (TrinityError, TimeoutError) as error:
        show_problem(error)
    return page


def show_stage(
    draw: Callable[[StagePage], None],
    *,
    empty: str,
    forget: Sequence[str],
    with_history: bool = False,
) -> None:
    """Shows a page about one stage of a run; another choice forgets parameters of the address."""

    def show(page: RunPage) -> None:
        stages = page.wait_for(stages_of(page.services))
        if stages:
            stage = chosen_stage(stages, forget)
            draw(StagePage(context=page.context, viewed=page.viewed, stage=stage))
        else:
            show_text(empty)

    show_run(show, with_history=with_history)


def open_page() -> RunPage | None:
    """Shows the head of a page about one run; returns the run, if any."""
    context = studio_context()
    try:
        found = _chosen(context)
    except (TrinityError, TimeoutError, OSError) as error:
        show_problem(error)
        return None
    if found is None:
        show_text("There is no such run here: choose one on the page Runs.")
        return None
    viewed, entry = found
    st.query_params[RUN] = st.session_state[LAST_RUN] = entry.address
    place = f"stage {entry.stage}" if entry.stage else ""
    tenant = f"tenant {entry.tenant}" if entry.tenant else ""
    show_text(joined([entry.label, tenant, entry.state.value, place]))
    return RunPage(context=context, viewed=viewed)


def _chosen(context: StudioContext) -> tuple[ViewedRun, RunEntry] | None:
    """Returns the run or the experiment that the address names, or the newest.

    Raises: TrinityError, TimeoutError if the services by address do not tell.
    """
    system, named = context.system(), named_run()
    if system is not None and named is not None and is_experiment_id(named):
        entry = context.wait_for(describe_experiment(system, named))
        return context.view_experiment(named), entry
    directory = chosen_run(context)
    if directory is not None:
        return context.view(directory), describe_run(directory)
    if system is None or named is not None:
        return None
    entries = context.wait_for(list_experiments(system))
    return (context.view_experiment(entries[0].experiment_id), entries[0]) if entries else None


def all_entries(context: StudioContext) -> list[RunEntry]:
    """Returns the experiments of services by address, and the runs of directories.

    Services that do not answer say so, and hide no run.
    """
    return [*_of_services(context), *list_runs(context.places)]


def _of_services(context: StudioContext) -> list[RunEntry]:
    system = context.system()
    if system is None:
        return []
    try:
        return context.wait_for(list_experiments(system))
    except (TrinityError, TimeoutError) as error:
        show_problem(error)
        return []


def view_entry(context: StudioContext, entry: RunEntry) -> ViewedRun:
    """Returns the run of an entry, and begins to open it if it is not open."""
    if is_experiment_id(entry.address):
        return context.view_experiment(entry.address)
    return context.view(Path(entry.address))


def is_open(viewed: ViewedRun, *, with_history: bool = False) -> bool:
    """Returns true if the run's services answer; else shows why not, and looks again.

    With history, it also waits for the events that are stored.
    """
    viewed.connection.touch()
    if is_ready(viewed, with_history=with_history):
        return True
    live_part(_wait, OPENING_SECONDS)(viewed, with_history)
    return False


def is_ready(viewed: ViewedRun, *, with_history: bool) -> bool:
    """Returns true if the run's services answer, and its stored events are here if asked for."""
    is_known = viewed.history.is_read or not with_history
    return viewed.connection.opened is not None and is_known


def _wait(viewed: ViewedRun, with_history: bool) -> None:
    """Shows the state of a run that is not open, until it is."""
    viewed.connection.touch()
    if is_ready(viewed, with_history=with_history):
        st.rerun()
    show_waiting(viewed)


def show_waiting(viewed: ViewedRun, name: str = "") -> None:
    """Shows why a run is not open, after its name where there are several."""
    connection, state = viewed.connection, viewed.connection.state
    detail = f"{name}: {state.detail}" if name else state.detail
    if state.phase is Phase.FAILED:
        show_problem(detail)
    elif state.phase is Phase.ASKING:
        show_box("warning", detail)
        if st.button("Open it", key=f"open-{connection.job_dir}"):
            connection.is_confirmed = True
    else:
        show_text(detail or READING)


def chosen_stage(
    stages: Sequence[query_pb2.StoredStage], forget: Sequence[str]
) -> query_pb2.StoredStage:
    """Returns the stage that the address names, or the last one with experiences."""
    names = [stage.key.stage for stage in stages]
    holding = [place for place, stage in enumerate(stages) if stage.counts]
    start = place_of(names, STAGE, (holding or [len(stages) - 1])[-1])
    if len(stages) == 1:
        return stages[0]
    return stages[choose_stage(names, start, forget)]


def choose_stage(names: Sequence[str], start: int, forget: Sequence[str] = ()) -> int:
    """Shows the choice of a stage; returns its place."""
    place: int = st.selectbox(
        "Stage", range(len(names)), index=start, format_func=lambda place: plain_text(names[place])
    )
    keep_choice(STAGE, names, start, place, forget)
    return place


def forget_parameters(names: Iterable[str]) -> None:
    """Removes parameters of the address."""
    for name in names:
        st.query_params.pop(name, None)


def place_of(names: Sequence[str], parameter: str, otherwise: int = 0) -> int:
    """Returns the place of the name that the address gives for a parameter."""
    named = st.query_params.get(parameter, "")
    return names.index(named) if named in names else otherwise


def keep_choice(
    parameter: str, names: Sequence[str], start: int, chosen: int, forget: Sequence[str] = (PAGE,)
) -> None:
    """Writes a choice into the address; another one than at the start forgets parameters."""
    if chosen != start:
        forget_parameters(forget)
    st.query_params[parameter] = names[chosen]


def remembered(key: str, asked: object, answer: Callable[[], ValueT]) -> ValueT:
    """Returns the session's last answer under the key, or a new one to another question."""
    kept: tuple[object, ValueT] | None = st.session_state.get(key)
    if kept is None or kept[0] != asked:
        kept = st.session_state[key] = (asked, answer())
    return kept[1]


def show_choice(
    name: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    parameter: str,
    key: str,
    empty: str,
    height: int = 0,
) -> str:
    """Shows a table to pick a row from; returns the id of the row that the address names."""
    named = st.query_params.get(parameter, "")
    picked = show_table(
        name, columns, rows, key=key, empty=empty, selectable=True, selected=named, height=height
    )
    if picked is not None:
        st.query_params[parameter] = picked
    return picked or named


def go_to_experiences(*, where: str, stage: str, sample: str = "") -> None:
    """Opens the page Experiences with a filter, and with one of them chosen if it is given."""
    from trinity.studio.pages import experiences

    parameters = {experiences.WHERE: where, experiences.SAMPLE: sample, STAGE: stage}
    st.switch_page(
        st.Page(experiences.show, title="Experiences", url_path="experiences"),
        query_params={name: value for name, value in parameters.items() if value},
    )


def show_prompt(rows: Sequence[ExperienceRow]) -> None:
    """Shows the prompt that experiences have in common."""
    show_text("Prompt")
    show_long_text(rows[0].prompt or NOT_RECORDED)


def show_response(row: ExperienceRow, facts: Iterable[str]) -> None:
    """Shows the response of an experience below some facts about it."""
    show_text(joined(facts))
    show_long_text(row.response or NOT_RECORDED)


def named_number(parameter: str, otherwise: int) -> int:
    """Returns the number that the address gives for a parameter."""
    text = st.query_params.get(parameter, "")
    return int(text) if text.isdecimal() and len(text) < 12 else otherwise


def page_number() -> int:
    """Returns the page that the address names, from 0."""
    return max(0, min(named_number(PAGE, 1), MAX_PAGE) - 1)


def rows_of_page(rows: Sequence[ValueT]) -> Sequence[ValueT]:
    """Returns the rows of the page that the address names."""
    first = page_number() * PAGE_ROWS
    return rows[first : first + PAGE_ROWS]


def turn_pages_of(rows: Sequence[object]) -> None:
    """Shows where the page is among the rows, if they fill more than one."""
    if len(rows) > PAGE_ROWS:
        has_more = len(rows) > (page_number() + 1) * PAGE_ROWS
        turn_pages(len(rows_of_page(rows)), has_more=has_more, remark=f" of {len(rows):,}")


def turn_pages(num_rows: int, *, has_more: bool, remark: str) -> None:
    """Shows which rows of a table these are, and buttons to the pages before and after.

    The remark follows the numbers, as `of 64` does.
    """
    page = page_number()
    before, middle, after = st.columns([1, 4, 1], vertical_alignment="center")
    first = page * PAGE_ROWS
    if num_rows:
        middle.text(plain_text(f"{first + 1:,} to {first + num_rows:,}{remark}"))
    if before.button("Previous", disabled=page == 0, width="stretch"):
        _go_to_page(page - 1)
    if after.button("Next", disabled=not has_more, width="stretch"):
        _go_to_page(page + 1)


def _go_to_page(page: int) -> None:
    st.query_params[PAGE] = str(page + 1)
    st.rerun()
