"""The page Configure: writes a configuration, checks it at each entry, and starts its run."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from trinity.config.plan.stage_plan import StagePlan
from trinity.config.sizing.memory import GIB
from trinity.errors import TrinityError, UserError
from trinity.run.launch.start import StartedRun, last_lines, reap_started, start_run
from trinity.studio.connection import System
from trinity.studio.context import studio_context
from trinity.studio.generator.document import (
    FormReport,
    Tree,
    check_tree,
    document_from_verl,
    make_tree,
    read_document,
)
from trinity.studio.generator.fields import BEGINNER, ESSENTIAL, EXPERT_SECTIONS, IMPORTANT
from trinity.studio.generator.form import (
    BASE_KEY,
    MODE_KEY,
    NEW_DOCUMENT,
    form_values,
    keep_session,
    load_document,
    register_entries,
)
from trinity.studio.generator.registry import CONFIG_GENERATORS
from trinity.studio.generator.sizes import (
    AXIS_HEIGHT,
    BAR_HEIGHT,
    MAX_NODES,
    GpuGrid,
    gpu_grid,
    memory_bars,
    memory_chart,
    unknown_models,
)
from trinity.studio.generator.sources import (
    document_of_example,
    document_of_run,
    example_files,
)
from trinity.studio.generator.start import file_name, save, submit_run
from trinity.studio.pages.common import live_part
from trinity.studio.plain_text import plain_text
from trinity.studio.runs import find_runs
from trinity.studio.widgets import (
    Column,
    show_box,
    show_long_text,
    show_problem,
    show_rows,
    show_text,
)

BEGINNER_MODE, EXPERT_MODE = "Beginner", "Expert"
MODES = (BEGINNER_MODE, EXPERT_MODE)
SOURCES = ("Example", "File", "Run", "veRL")
MAX_SOURCES = 200
"""Most runs to choose from; the newest."""
REMARKS_KEY, SECTION_KEY, GPU_KEY = "_form_remarks", "_form_section", "_form_gpu_gib"
GPU_GIB = 80
FIELDS_A_ROW = 2
STARTED_KEY = "_form_started"
DRAFT_KEY = "_form_draft"
"""Key of the session: the document that the visitor may go on with, or None."""
PROGRESS_SECONDS = 2.0
WAIT_FOR_SUBMISSION_SECONDS = 60.0
MEMORY_COLUMNS = (Column("Role"), Column("Part"), Column("GiB", "number"), Column("From", "wrap"))
HAS_ERRORS = "The configuration has errors. They stand below their fields, all others here."
TO_FILL = "Some required fields are empty. They say so, and all others stand here."
MISSING, REQUIRED = "` is missing", "` is required"
SAVED_KEY = "_form_saved"
"""Key of the session: true once the visitor has saved, which makes an empty field an error."""
UNFINISHED = "Some fields are not finished."
IS_RIGHT = "The configuration is right. Models and data are looked at when the run starts."
DRAFT = "A form was filled before this page was loaded, in this or in another tab."
SUBMITTED = "The services run it now. It goes on without this page, and stands under Runs."
SUBMIT_HELP = (
    "The services at `--buffer` and `--synchronizer` run it. Paths in it are those of their "
    "machines: the checkpoint root, the model, the tasksets."
)


@dataclass(frozen=True, slots=True)
class ErrorSlot:
    """A place below a field for its errors."""

    path: str
    place: Any
    """A container of Streamlit."""


def show() -> None:
    """Shows the page: fields first, as they may change one another, then the check of them all."""
    st.title("Configure", anchor=False)
    reap_started()
    try:
        _require_owner()
        register_entries()
        keep_session()
        _offer_draft()
        CONFIG_GENERATORS.set_unfinished_fields(set())
        _show_sources()
        form, result = st.columns([3, 2], gap="large")
        with form:
            slots = list(_show_form())
        report = _report()
    except TrinityError as error:
        show_problem(error)
        return
    for slot in slots:
        with slot.place:
            for text in report.errors.get(slot.path, ()):
                _show_error(text)
    with result:
        _show_result(report, shown={slot.path for slot in slots})


def _require_owner() -> None:
    """Raises UserError for visitors with tokens: the page reads files here, and starts programs."""
    if not studio_context().visitor().is_owner:
        raise UserError(
            "This page writes files and starts programs on Studio's machine, so a token does not "
            "open it: run `trinity studio` on your own machine, with `--buffer` and "
            "`--synchronizer` to submit from there, or type `trinity deploy render FILE` and "
            "`trinity deploy submit --plan deployment/plan.json --synchronizer HOST:PORT "
            "--buffer HOST:PORT`."
        )


def _report() -> FormReport:
    """Checks the form as it is now; a field that cannot be read is reported, too."""
    base = st.session_state[BASE_KEY]
    tree = make_tree(base, form_values(), CONFIG_GENERATORS.entries)
    context = studio_context()
    if tree != NEW_DOCUMENT:
        context.drafts.keep(context.visitor().key, tree)
    return check_tree(tree)


def _offer_draft() -> None:
    """Offers the form as it was before the page was reloaded, until the user decides."""
    context = studio_context()
    if DRAFT_KEY not in st.session_state:
        st.session_state[DRAFT_KEY] = context.drafts.last(context.visitor().key)
    draft: Tree | None = st.session_state[DRAFT_KEY]
    if draft is None:
        return
    show_box("note", DRAFT)
    going_on, leaving = st.columns(2)
    if going_on.button("Go on with that form", width="stretch"):
        st.session_state[DRAFT_KEY] = None
        _start_from(draft, ())
    if leaving.button("Begin with a new one", width="stretch"):
        st.session_state[DRAFT_KEY] = None
        st.rerun()


def _show_sources() -> None:
    """Shows sources to start a configuration from, and the remarks about the last one."""
    with st.expander("Start from an example, a file, a run, or a script of veRL"):
        offers = (_offer_examples, _offer_files, _offer_runs, _offer_scripts)
        for tab, offer in zip(st.tabs(SOURCES), offers, strict=True):
            with tab:
                try:
                    offer()
                except TrinityError as error:
                    show_problem(error)
    for remark in st.session_state.get(REMARKS_KEY, ()):
        show_text(remark)


def _start_from(tree: Tree, remarks: Sequence[str]) -> None:
    load_document(tree)
    st.session_state[REMARKS_KEY] = tuple(remarks)
    st.session_state[SAVED_KEY] = False
    st.rerun()


def _offer_examples() -> None:
    files = example_files()
    if not files:
        show_text("The examples are in the source repository, which is not beside this package.")
        return
    names = list(files)
    name = st.selectbox("Example", names, index=None, placeholder="the name of a folder")
    if st.button("Use this example", disabled=name is None) and name is not None:
        _start_from(*document_of_example(files[name]))


def _offer_files() -> None:
    file = st.file_uploader("YAML file", type=["yaml", "yml"])
    if st.button("Use this file", disabled=file is None) and file is not None:
        _start_from(read_document(file.getvalue().decode(errors="replace")), ())


def _offer_runs() -> None:
    runs = find_runs(studio_context().places)[:MAX_SOURCES]
    if not runs:
        show_text("No run was started below the places that Studio looks at.")
        return
    place = st.selectbox(
        "Run",
        range(len(runs)),
        index=None,
        format_func=lambda place: plain_text("/".join(runs[place].parts[-2:])),
        placeholder="the newest first",
    )
    if st.button("Use this run", disabled=place is None) and place is not None:
        _start_from(*document_of_run(runs[place]))


def _offer_scripts() -> None:
    script = st.text_area("Script of veRL", placeholder="python3 -m verl.trainer.main_ppo ...")
    if st.button("Convert this script", disabled=not script):
        _start_from(*document_from_verl(script))


def _show_form() -> Iterator[ErrorSlot]:
    mode = st.radio("Mode", MODES, horizontal=True, key=MODE_KEY)
    if mode == BEGINNER_MODE:
        st.subheader("Essential Configs", anchor=False)
        yield from _show_fields(BEGINNER[ESSENTIAL])
        st.subheader("Important Configs", anchor=False)
        yield from _show_fields(BEGINNER[IMPORTANT])
        return
    section = st.selectbox("Section", [*EXPERT_SECTIONS, *_sections_of_plugins()], key=SECTION_KEY)
    yield from _show_fields(CONFIG_GENERATORS.names_of(section))


def _sections_of_plugins() -> list[str]:
    sections = dict.fromkeys(entry.section for entry in CONFIG_GENERATORS.entries.values())
    return [name for name in sections if name and name not in EXPERT_SECTIONS]


def _show_fields(names: Sequence[str]) -> Iterator[ErrorSlot]:
    """Draws rows of fields; yields the place below each."""
    for first in range(0, len(names), FIELDS_A_ROW):
        row = names[first : first + FIELDS_A_ROW]
        for name, column in CONFIG_GENERATORS.get_configs(*row, drawing=st).items():
            yield ErrorSlot(CONFIG_GENERATORS.entries[name].path, column)


def _is_to_fill(error: str) -> bool:
    return MISSING in error and not st.session_state.get(SAVED_KEY)


def _show_error(error: str) -> None:
    """Shows an error of a field; one that is only empty is required until the form is saved."""
    if _is_to_fill(error):
        show_box("note", error.replace(MISSING, REQUIRED, 1))
    else:
        show_problem(error)


def _show_result(report: FormReport, shown: Collection[str]) -> None:
    """Shows the outcome of the check, with the errors of fields that are not shown now."""
    unfinished = CONFIG_GENERATORS.unfinished_fields
    if report.all_errors:
        is_right_so_far = all(map(_is_to_fill, report.all_errors))
        show_box(*(("note", TO_FILL) if is_right_so_far else ("bad", HAS_ERRORS)))
    elif unfinished:
        show_box("warning", UNFINISHED)
    else:
        show_box("good", IS_RIGHT)
    for path, errors in report.errors.items():
        for error in errors if path not in shown else ():
            _show_error(error)
    for error in report.other_errors:
        _show_error(error)
    for text in (*report.advice, *report.plan):
        show_text(text)
    _show_sizes(report.stages)
    st.code(plain_text(report.yaml), language="yaml", wrap_lines=True)
    name = file_name(str(st.session_state["project"]), str(st.session_state["exp_name"]))
    st.download_button("Download", report.yaml, file_name=name, mime="application/yaml")
    _show_start(report, name, is_ready=not (report.all_errors or unfinished))


def _show_sizes(stages: Sequence[StagePlan]) -> None:
    """Shows the GPUs of each stage and their memory; empty if all stages run on the CPU."""
    grids = [(stage, grid) for stage in stages if (grid := gpu_grid(stage)) is not None]
    if not grids:
        return
    size = st.number_input("GiB of each GPU", min_value=1, value=GPU_GIB, key=GPU_KEY)
    for stage, grid in grids:
        show_text(f"GPUs of stage {stage.name}")
        _show_grid(stage.name, grid)
        try:
            _show_memory(stage, size * GIB)
        except UserError as error:  # a `config.json` that cannot be read
            show_problem(error)


def _show_grid(stage: str, grid: GpuGrid) -> None:
    columns = (Column("Node", "number"), *(Column(f"GPU {at}") for at in range(len(grid.rows[0]))))
    rows = ((f"{node}", *row) for node, row in enumerate(grid.rows))
    show_rows("GPUs", columns, rows, key=f"gpus-{stage}")
    if grid.num_nodes > len(grid.rows):
        show_text(f"The first {MAX_NODES} of {grid.num_nodes:,} nodes are shown.")


def _show_memory(stage: StagePlan, gpu_bytes: int) -> None:
    bars = memory_bars(stage, gpu_bytes)
    for path in unknown_models(stage):
        show_text(f"Memory is not known: there is no config.json of {path} here.")
    if not bars:
        return
    for bar in bars:
        show_text(f"{bar.role}: {bar.verdict}")
    height = BAR_HEIGHT * len(bars) + AXIS_HEIGHT
    st.vega_lite_chart(memory_chart(bars, gpu_bytes), width="stretch", height=height)
    show_text("An estimate, for one GPU of each role; the dashed line is the end of the GPU.")
    with st.expander("Memory as a table"):
        rows = (
            (bar.role, term.name, f"{term.bytes / GIB:.2f}", term.formula)
            for bar in bars
            for term in bar.terms
        )
        show_rows("Memory", MEMORY_COLUMNS, rows, key=f"memory-{stage.name}")


def _show_start(report: FormReport, name: str, *, is_ready: bool) -> None:
    path = st.text_input("Save as", value=name, key=f"_form_path_{name}")
    may_replace = st.checkbox("Replace the file if it exists")
    system = studio_context().system()
    saving, starting, *submitting = st.columns(2 if system is None else 3)
    try:
        remember = partial(st.session_state.update, {SAVED_KEY: True})
        if saving.button("Save", width="stretch", on_click=remember):
            saved = save(report.yaml, Path(path), may_replace=may_replace)
            show_text(f"saved {saved}")
        if starting.button("Save and start the run", disabled=not is_ready, width="stretch"):
            saved = save(report.yaml, Path(path), may_replace=may_replace)
            st.session_state[STARTED_KEY] = start_run(saved)
        if system is not None and submitting[0].button(
            "Save and submit", disabled=not is_ready, width="stretch", help=SUBMIT_HELP
        ):
            saved = save(report.yaml, Path(path), may_replace=may_replace)
            _submit(saved, system)
    except (TrinityError, TimeoutError) as error:
        show_problem(error)
    if STARTED_KEY in st.session_state:
        live_part(_show_started, PROGRESS_SECONDS)(st.session_state[STARTED_KEY])


def _submit(config: Path, system: System) -> None:
    """Submits the run to the services by address, and says how it is called there."""
    submitted = studio_context().wait_for(submit_run(config, system), WAIT_FOR_SUBMISSION_SECONDS)
    for line in submitted.told:
        show_text(line)
    show_box("good", SUBMITTED)


def _show_started(started: StartedRun) -> None:
    """Shows the output of the started run, which continues without this page."""
    show_text(f"process {started.pid} runs it, and writes to {started.log}:")
    show_long_text(last_lines(started.log) or "...")
