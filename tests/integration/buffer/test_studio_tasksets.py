"""An upload in Studio, and what its page then shows, with a real buffer."""

import uuid
from types import SimpleNamespace
from typing import cast

from tests.integration.buffer.process import BufferProcess
from trinity.runtime.security.credentials import Credentials
from trinity.studio.connection import OpenRun, System
from trinity.studio.tasksets import (
    UploadedFile,
    list_tasksets,
    read_taskset,
    request_id_of,
    title_of,
    upload,
)


async def test_an_uploaded_file_is_listed_with_its_rows_and_goes_on_when_sent_again(
    process: BufferProcess,
) -> None:
    system = System(buffer=process.address, synchronizer="", security=Credentials())
    opened = cast(OpenRun, SimpleNamespace(system=system, tenant=uuid.uuid4().hex))
    file = UploadedFile("own.jsonl", b'{"prompt": "a"}\nno row\n{"prompt": "b"}\n[1]\n')
    for _ in range(2):
        done = await upload(
            opened,
            name="mine",
            file=file,
            is_queue=False,
            request_id=request_id_of("mine", file, is_queue=False, unfinished={}),
            allows_changes=True,
        )
        assert (done.num_stored, done.num_refused) == (2, 2)
        assert [row.index for row in done.refused] == [1, 3]
    [found] = await list_tasksets(opened)
    assert (title_of(found), found.num_rows, found.num_refused) == ("mine", 2, 2)
    rows = (await read_taskset(opened, found.taskset_id, first_row=1)).rows
    assert rows == ({"prompt": "b"},)
