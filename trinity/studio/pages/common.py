"""Parts that several pages share: the chosen run, its head, and waiting until it is open."""

from pathlib import Path

import streamlit as st

from trinity.errors import TrinityError
from trinity.studio.connection import Phase
from trinity.studio.context import StudioContext, ViewedRun, studio_context
from trinity.studio.plain_text import joined, plain_text
from trinity.studio.runs import RunEntry, describe_run, find_runs
from trinity.studio.system import describe_experiment, is_experiment_id, list_experiments
from trinity.studio.widgets import show_problem

RUN = "run"
"""Parameter of the address: the directory of the run."""
REFRESH_SECONDS = 2.0
OPENING_SECONDS = 0.5
WORKING = frozenset({Phase.OPENING, Phase.WAITING, Phase.CLOSED})


def chosen_run(context: StudioContext) -> Path | None:
    """Returns the run that the address names, or the newest; None if there is none.

    Only runs below the places that Studio was started with can be named.
    """
    found = find_runs(context.places)
    named = st.query_params.get(RUN)
    if named is None:
        return found[0] if found else None
    return Path(named) if Path(named) in found else None


def open_page(title: str) -> tuple[StudioContext, ViewedRun, RunEntry] | None:
    """Shows the head of a page about one run; returns the run, or None if there is none."""
    context = studio_context()
    try:
        found = _chosen(context)
    except (TrinityError, TimeoutError) as error:
        show_problem(error)
        return None
    if found is None:
        st.text("There is no such run here: choose one on the page Runs.")
        return None
    viewed, entry = found
    st.query_params[RUN] = entry.address
    place = f"stage {entry.stage}" if entry.stage else ""
    tenant = f"tenant {entry.tenant}" if entry.tenant else ""
    st.text(plain_text(joined([title, entry.label, tenant, entry.state.value, place])))
    return context, viewed, entry


def _chosen(context: StudioContext) -> tuple[ViewedRun, RunEntry] | None:
    """Returns the run or the experiment that the address names, or the newest.

    Raises: TrinityError, TimeoutError if the services by address do not tell.
    """
    system, named = context.system(), st.query_params.get(RUN)
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


def is_open(viewed: ViewedRun) -> bool:
    """Returns true if the run's services answer; else shows why not, and looks again."""
    viewed.connection.touch()
    if viewed.connection.opened is not None:
        return True
    st.fragment(_wait, run_every=OPENING_SECONDS)(viewed)
    return False


def _wait(viewed: ViewedRun) -> None:
    """Shows the state of a run that is not open, until it is."""
    viewed.connection.touch()
    if viewed.connection.opened is not None:
        st.rerun()
    show_waiting(viewed)


def show_waiting(viewed: ViewedRun) -> None:
    """Shows why a run is not open."""
    state = viewed.connection.state
    if state.phase is Phase.FAILED:
        show_problem(state.detail)
    else:
        st.text(plain_text(state.detail))
