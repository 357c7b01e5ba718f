"""The page Tasksets: what tasks there are, their first rows, and the upload of more."""

import streamlit as st

from trinity.client import SubmitResult, TasksetInfo
from trinity.errors import TrinityError
from trinity.studio.pages.common import (
    RunPage,
    forget_parameters,
    named_number,
    show_choice,
    show_run,
)
from trinity.studio.plain_text import joined
from trinity.studio.tasksets import (
    FILE_KINDS,
    MAX_LISTED,
    MAX_REASONS,
    NOT_ALLOWED,
    ROWS_SHOWN,
    UPLOAD_SECONDS,
    UploadedFile,
    cell_text,
    columns_of,
    list_tasksets,
    name_for,
    pipeline_lines,
    read_taskset,
    request_id_of,
    result_text,
    row_text,
    source_text,
    title_of,
    upload,
)
from trinity.studio.widgets import (
    Column,
    Row,
    show_box,
    show_long_text,
    show_problem,
    show_rows,
    show_text,
)

TASKSET, FIRST, ROW = "id", "first", "row"
"""Parameters of the address."""
DONE_KEY = "_upload_done"
"""Key of the session: the last upload with its result."""
UNFINISHED_KEY = "_uploads_unfinished"
"""Key of the session: ids of uploads into queues that have not ended well yet."""
TABLE_HEIGHT = 280
COLUMNS = (
    Column("Taskset"),
    Column("Rows", "number"),
    Column("Refused", "number"),
    Column("State"),
    Column("Stages", "number"),
    Column("Stored (UTC)"),
    Column("Source", "text"),
)
REFUSED_COLUMNS = (Column("Row", "number"), Column("Why it was refused", "wrap"))
NO_TASKSETS = "There is no taskset yet. A run stores the files that it names; or upload one below."
NO_ROWS = "There are no rows from here on."
TOO_LONG = (
    "The upload takes long and was broken off. Upload the same file under the same name again: "
    "it goes on where it was."
)


def show() -> None:
    """Shows the page."""
    st.title("Tasksets", anchor=False)
    if (page := show_run(_show_tasksets)) is not None:
        _show_upload(page)


def _show_tasksets(page: RunPage) -> None:
    tasksets = page.wait_for(list_tasksets(page.services))
    before = st.query_params.get(TASKSET, "")
    named = show_choice(
        "Tasksets",
        COLUMNS,
        [taskset_cells(taskset) for taskset in tasksets[:MAX_LISTED]],
        parameter=TASKSET,
        key="tasksets",
        empty=NO_TASKSETS,
        height=TABLE_HEIGHT,
    )
    if len(tasksets) > MAX_LISTED:
        show_text(f"The newest {MAX_LISTED} of {len(tasksets):,} are shown.")
    if named != before:
        forget_parameters((FIRST, ROW))
    chosen = next((taskset for taskset in tasksets if taskset.taskset_id == named), None)
    if chosen is not None:
        _show_taskset(page, chosen)


def taskset_cells(taskset: TasksetInfo) -> Row:
    """Converts a taskset to a row of the table."""
    kind = f"{taskset.state} queue" if taskset.is_queue else taskset.state.value
    return Row(
        id=taskset.taskset_id,
        cells=(
            title_of(taskset),
            f"{taskset.num_rows:,}",
            f"{taskset.num_refused:,}" if taskset.num_refused else "",
            kind,
            f"{taskset.num_stages:,}",
            taskset.created_at.strftime("%Y-%m-%d %H:%M"),
            source_text(taskset),
        ),
    )


def _show_taskset(page: RunPage, taskset: TasksetInfo) -> None:
    st.subheader("Rows", divider="gray", anchor=False)
    title = joined([title_of(taskset), f"{taskset.num_rows:,} rows", source_text(taskset)])
    show_text(title)
    for line in pipeline_lines(taskset):
        show_text(line)
    if not taskset.num_rows:
        show_text(NO_ROWS)
        return
    first = _first_row(taskset)
    found = page.wait_for(read_taskset(page.services, taskset.taskset_id, first_row=first))
    keys = columns_of(found.rows)
    show_choice(
        "Rows",
        (Column("Row", "number"), *(Column(key, "text") for key in keys)),
        [
            Row(f"{first + place}", (f"{first + place:,}", *(cell_text(row, key) for key in keys)))
            for place, row in enumerate(found.rows)
        ],
        parameter=ROW,
        key="rows",
        empty=NO_ROWS,
    )
    place = named_number(ROW, -1) - first
    if 0 <= place < len(found.rows):
        show_text("The whole row")
        show_long_text(row_text(found.rows[place]))


def _first_row(taskset: TasksetInfo) -> int:
    """Shows the choice of the first row."""
    last = max(0, taskset.num_rows - 1)
    if taskset.num_rows <= ROWS_SHOWN:
        return 0
    narrow, _ = st.columns([1, 3])
    first = narrow.number_input(
        "First row",
        min_value=0,
        max_value=last,
        value=min(named_number(FIRST, 0), last),
        step=ROWS_SHOWN,
    )
    st.query_params[FIRST] = str(first)
    return int(first)


def _show_upload(page: RunPage) -> None:
    st.subheader("Upload", divider="gray", anchor=False)
    if not page.context.options.allows_changes:
        show_text(NOT_ALLOWED)
        return
    sent = st.file_uploader("File", type=list(FILE_KINDS))
    if sent is not None:
        file = UploadedFile(sent.name, sent.getvalue())
        name = st.text_input("Name of the taskset", value=name_for(sent.name))
        is_queue = st.checkbox("Add to a queue of this name")
        if st.button("Upload"):
            _upload(page, name, file, is_queue=is_queue)
    if DONE_KEY in st.session_state:
        _show_done(*st.session_state[DONE_KEY])


def _upload(page: RunPage, name: str, file: UploadedFile, *, is_queue: bool) -> None:
    st.session_state.pop(DONE_KEY, None)
    unfinished: dict[str, str] = st.session_state.setdefault(UNFINISHED_KEY, {})
    try:
        with st.spinner("The rows are being stored."):
            done = page.wait_for(
                upload(
                    page.services,
                    name=name,
                    file=file,
                    is_queue=is_queue,
                    request_id=request_id_of(name, file, is_queue=is_queue, unfinished=unfinished),
                    allows_changes=page.context.options.allows_changes,
                ),
                UPLOAD_SECONDS,
            )
    except TimeoutError:
        show_problem(TOO_LONG)
    except TrinityError as error:
        show_problem(error)
    else:
        unfinished.clear()
        st.session_state[DONE_KEY] = (name, done)
        st.query_params[TASKSET] = done.taskset_id
        forget_parameters((FIRST, ROW))
        st.rerun()


def _show_done(name: str, done: SubmitResult) -> None:
    """Shows the outcome of the last upload, with the reason of each refused row."""
    show_box("warning" if done.num_refused else "good", result_text(name, done))
    if not done.refused:
        return
    rows = ((f"{row.index:,}", row.reason) for row in done.refused[:MAX_REASONS])
    show_rows("Refused rows", REFUSED_COLUMNS, rows)
    if done.num_refused > MAX_REASONS:
        show_text(f"The first {min(MAX_REASONS, len(done.refused))} reasons are shown.")
