"""The reader of rows: every kind of file, and one sentence for every mistake."""

import datetime
import gzip
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import feather

from services.buffer.domain.tasks import data_sample, sanitize_text
from services.buffer.tasksets.read_rows import MAX_ROW_BYTES, read_rows
from services.buffer.tasksets.row_sources import RowSource
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.data_rows import count_rows, first_row
from trinity.config.schema.data import FormatConfig
from trinity.config.training_rows import RowCheck, SkippedRows
from trinity.data.rows import rows_to_json

HEAVY = ("pydantic", "sqlalchemy", "google.protobuf", "numpy", "pyarrow", "trinity.config.schema")


@dataclass(slots=True)
class Done:
    """The output of the reader."""

    rows: str = ""
    error: str = ""
    skipped: SkippedRows | None = None

    def write(self, answer: dict[str, Any], *payload: bytes) -> None:
        """Takes an answer, as a channel does."""
        assert not (self.error or self.skipped), "it was the last"
        self.error = answer.get("error", "")
        if "skipped" in answer:
            self.skipped = SkippedRows(**answer["skipped"])
        assert sum(map(len, payload)) == answer.get("num_bytes", 0)
        self.rows += b"".join(payload).decode("ascii")


class Read(Protocol):
    """Runs the reader's main function on a path."""

    def __call__(self, path: Path, check: RowCheck | None = None) -> Done: ...


@pytest.fixture
def read() -> Read:
    """Reads the rows of a path."""

    def run(path: Path, check: RowCheck | None = None) -> Done:
        done = Done()
        read_rows(RowSource(kind="file", place=str(path), roots=("/",), check=check), done.write)
        return done

    return run


def test_all_kinds_of_files_give_the_same_rows(tmp_path: Path, read: Read) -> None:
    rows = [{"prompt": "\u00fc\u4f60\x00", "n": 1}, {"prompt": "b", "n": 2}]
    table = pa.Table.from_pylist(rows)
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, rows)))
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(
        sink, table.schema
    ) as writer:  # fmt: skip
        writer.write_table(table)
    for name in ("a.jsonl", "a.json", "lines.json", "a.parquet", "a.arrow"):
        done = read(tmp_path / name)
        assert done.skipped is not None, done.error
        assert [json.loads(line) for line in done.rows.splitlines()] == rows


def write_feather(file: Path) -> None:
    feather.write_feather(TABLE, file, chunksize=2)


def write_ipc_file(file: Path) -> None:
    """With the types of polars: texts as views, categories by number."""
    texts = TABLE["prompt"].cast(pa.string_view())
    categories = TABLE["kind"].dictionary_encode()
    table = pa.table({"prompt": texts, "kind": categories, "n": TABLE["n"]})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


TABLE = pa.table({"prompt": ["a", "b", "c"], "kind": ["x", "y", "x"], "n": [1, 2, None]})


@pytest.mark.parametrize("write", [write_feather, write_ipc_file])
def test_arrow_files_are_read_as_arrow_streams_are(
    tmp_path: Path, read: Read, write: Callable[[Path], None]
) -> None:
    file = tmp_path / "a.arrow"
    write(file)
    done = read(file)
    assert done.skipped is not None, done.error
    assert [json.loads(line) for line in done.rows.splitlines()] == TABLE.to_pylist()
    assert (count_rows((file,)), first_row((file,))) == (3, TABLE.to_pylist()[0])


def test_a_table_of_texts_gives_texts(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfprompt,n\n"two\nlines, one cell",07\n')
    done = read(tmp_path / "a.csv")
    assert json.loads(done.rows) == {"prompt": "two\nlines, one cell", "n": "07"}


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.csv", "a.tsv"])
def test_a_text_is_read_compressed_or_not(tmp_path: Path, read: Read, name: str) -> None:
    texts = {
        "json": '[{"a": "1", "b": "x, y"}]',
        "csv": 'a,b\n1,"x, y"\n',
        "tsv": "a\tb\n1\tx, y\n",
    }
    text = texts.get(name.rpartition(".")[2], '{"a": "1", "b": "x, y"}\n')
    (tmp_path / name).write_text(text)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    for file in (tmp_path / name, tmp_path / f"{name}.gz"):
        done = read(file)
        assert json.loads(done.rows) == {"a": "1", "b": "x, y"}, done.error
        assert count_rows((file,)) == 1


def test_a_second_column_of_a_name_is_refused_in_tables_of_arrow(
    tmp_path: Path, read: Read
) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["x", "x"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as f,
    ):
        f.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        assert "has several columns `x`" in read(tmp_path / name).error


def test_a_decimal_keeps_the_digits_that_a_number_has_no_room_for(
    tmp_path: Path, read: Read
) -> None:
    values = [Decimal("1.50"), Decimal("12345678901234567890.12"), None]
    pyarrow.parquet.write_table(pa.table({"x": values}), tmp_path / "a.parquet")
    rows = [json.loads(line)["x"] for line in read(tmp_path / "a.parquet").rows.splitlines()]
    assert rows == [1.5, "12345678901234567890.12", None]


def test_dates_are_written_as_text(tmp_path: Path, read: Read) -> None:
    table = pa.table({"day": [datetime.date(2024, 2, 29)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert json.loads(read(tmp_path / "a.parquet").rows) == {"day": "2024-02-29"}


ODD = {
    "prompt": "a",
    "nan": math.nan,
    "deep": [{"inf": -math.inf}],
    "picture": b"\xff\xd8",
    "text": b"b",
    "took": datetime.timedelta(seconds=1.5),
    "kept": None,
}
STORED = {
    "prompt": "a",
    "nan": None,
    "deep": [{"inf": None}],
    "picture": None,
    "text": "b",
    "took": 1.5,
    "kept": None,
}


def test_a_value_that_json_cannot_hold_harms_no_row(tmp_path: Path, read: Read) -> None:
    pyarrow.parquet.write_table(pa.Table.from_pylist([ODD]), tmp_path / "a.parquet")
    done = read(tmp_path / "a.parquet")
    assert json.loads(done.rows) == STORED, done.error


def test_nanoseconds_are_left_out(tmp_path: Path, read: Read) -> None:
    table = pa.table(
        {"at": pa.array([1], pa.timestamp("ns")), "took": pa.array([1_500_001], pa.duration("ns"))}
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, tmp_path / "a.arrow")
    for name in ("a.parquet", "a.arrow"):
        row = json.loads(read(tmp_path / name).rows)
        assert row == {"at": "1970-01-01T00:00:00", "took": 0.0015}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "list.json"])
def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path, read: Read, name: str) -> None:
    text = '[{"n": 1}]' if name == "list.json" else '{"n": 1}\n'
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert read(tmp_path / name).rows == '{"n": 1}\n'
    with (tmp_path / name).open("rb") as stream:
        assert list(rows_to_json(stream, name)) == ['{"n": 1}']


def test_numbers_that_are_none_are_null_in_what_a_client_submits() -> None:
    lines = b'{"n": NaN}\n{"n": "NaN"}\n{"n": [-Infinity}\n[NaN]\n'
    given = list(rows_to_json(io.BytesIO(lines), "a.jsonl"))
    assert given == ['{"n": null}', '{"n": "NaN"}', '{"n": [-Infinity}', "[NaN]"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz"])
def test_lines_that_are_sent_are_the_buffers_to_refuse(name: str) -> None:
    lines = b'{"a": 1}\nno json\n'
    sent = gzip.compress(lines) if name.endswith(".gz") else lines
    assert list(rows_to_json(io.BytesIO(sent), name)) == ['{"a": 1}', "no json"]


def test_messages_and_tools_lose_the_nulls_of_other_ones(tmp_path: Path, read: Read) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}, {"id": "1"}]},
        ],
        "tools": [{"function": {"properties": {"a": {"type": "t"}}}}, {"type": "x"}],
        "extra_info": {"answer": None, "cases": [{"input": "1", "output": None}]},
    }
    pyarrow.parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    feather.write_feather(pa.Table.from_pylist([row]), tmp_path / "a.arrow")
    for name in ("a.parquet", "a.arrow"):
        assert json.loads(read(tmp_path / name).rows) == row


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.parquet", b"PAR1 no", "not a readable parquet file"),
        ("a.arrow", b"ARROW1\0\0 no", "not a readable Arrow file"),
        ("a.jsonl", b"[NaN]\n", "a.jsonl:1: a row"),
        ("a.jsonl", b"{}\n\xff\xfe\n", ":2: it is not UTF-8"),
        ("a.jsonl", b'{"a": 1}\n{"a": "b', ":2: not valid JSON: Unterminated"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xc3', ":2: it is not UTF-8 text: unexpected end"),
        ("a.csv", b"a\n1\n\xff\n", ":3: it is not UTF-8"),
        ("a.json", b"[1, 2", ":1: not valid JSON"),
        ("a.xml", b"<a/>", "of an unknown kind"),
        ("a.json", b'{\n  "a": 1\n}', "a .json file holds a list of rows, `[...]`, or a row on"),
        ("a.csv", b"a,b,b\n1,2,3\n", "has several columns `b`: rename them"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-9],
            "compressed text is cut or damaged",
        ),
        ("a.jsonl.gz", b'{"a": 1}\n', "Not a gzipped file"),
        ("a.csv", b"a,b\n1\n", ":2: it does not have the 2 columns"),
        ("a.csv", b'a\n"1', ":2: not valid csv"),
        ("a.tsv", b'a\tb\n1\t2\n"x" y\t3\n', ":3: not valid tsv"),
        ("a.jsonl", b'{"a": 1}\n{"a": ' + b"1" * 5000 + b"}\n", ":2: not valid JSON: Exceeds"),
        ("a.json", b"[" * 100_000, ":1: it is nested too deeply"),
    ],
)
def test_a_mistake_in_the_data_is_one_sentence(
    tmp_path: Path, read: Read, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = read(tmp_path / name)
    assert sentence in done.error and str(tmp_path) in done.error
    assert "\n" not in done.error


def test_a_row_that_fits_into_no_message_is_refused_by_its_number(
    tmp_path: Path, read: Read
) -> None:
    rows = [{"prompt": "a"}, {"prompt": "x" * MAX_ROW_BYTES}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = read(tmp_path / "a.jsonl")
    assert "a.jsonl:2: it has" in done.error
    assert f"a row may have {MAX_ROW_BYTES:,}" in done.error


PLAIN = FormatConfig(prompt_type="plaintext", response_key="extra_info.answer")
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
SHOWN_CALL = '[{"id": "1", "arguments": {}}]'
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}


GOOD = {"prompt": "1+1=", "response": "2"}
BAD = {"prompt": "1+1=", "response": None}


def checked(*, skips: bool) -> RowCheck:
    form = FormatConfig(prompt_type="plaintext")
    return RowCheck(form=form, row_schema="sft", skips=skips)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two good rows and two bad ones."""
    file = tmp_path / "a.jsonl"
    rows = [GOOD, BAD, GOOD, {"prompt": "x"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_row_that_cannot_be_trained_on_ends_the_reading(mixed: Path, read: Read) -> None:
    done = read(mixed, checked(skips=False))
    said = f"{mixed}:2, column 'response': it holds no text: correct the row or leave it out"
    assert done.error == f"{said}; `on_bad_row: skip` leaves such rows out"
    assert not read(mixed).error


def test_rows_that_cannot_be_trained_on_are_left_out_and_named(mixed: Path, read: Read) -> None:
    done = read(mixed, checked(skips=True))
    assert [json.loads(line) for line in done.rows.splitlines()] == [GOOD, GOOD]
    assert done.skipped is not None
    assert done.skipped.count == 2
    assert ":2, column 'response'" in done.skipped.first_errors[0]
    assert ":4 has no column 'response'" in done.skipped.first_errors[1]


def test_a_source_is_the_same_after_its_way_to_the_reader() -> None:
    plain = RowSource(kind="file", place="a.jsonl", roots=("/a", "/b"), split="eval")
    table = replace(plain, kind="sql", table="train", check=checked(skips=True))
    assert [RowSource.from_json(source.to_json()) for source in (plain, table)] == [plain, table]


def test_a_file_is_read_without_heavy_imports(tmp_path: Path) -> None:
    """Each stage that opens starts a reader for each of its tasksets."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"q": 1}\n')
    code = (
        "import sys\nfrom services.buffer.tasksets.read_rows import main\nmain()\n"
        f"sys.exit(str([name for name in {HEAVY!r} if name in sys.modules] or ''))"
    )
    source = RowSource(kind="file", place=str(file), roots=("/",)).to_json()
    asked = json.dumps({"source": source}) + "\n"
    done = subprocess.run(
        [sys.executable, "-c", code], input=asked, capture_output=True, text=True, check=False
    )
    assert done.stderr == "\n"
    assert done.stdout.splitlines()[1] == '{"q": 1}'


@pytest.mark.parametrize(
    ("schema", "form", "row", "shown"),
    [
        ("sft", PLAIN, {"prompt": "1+1=", "extra_info": {"answer": "2"}}, ("1+1=", "2")),
        ("sft", FormatConfig(), {"message": TURNS}, ("hi", "ho")),
        ("sft", FormatConfig(), {"message": json.dumps(TURNS)}, ("hi", "ho")),
        (
            "sft",
            FormatConfig(),
            {"message": [TURNS[0], CALL]},
            ("hi", SHOWN_CALL),
        ),
        ("cpt", PLAIN, {"prompt": "a text"}, ("", "a text")),
        (
            "dpo",
            PLAIN,
            {"prompt": "hi", "chosen": "ho", "rejected": "no"},
            ("hi", "chosen: ho\nrejected: no"),
        ),
        (
            "dpo",
            FormatConfig(),
            {"message": TURNS[:1], "chosen": TURNS[1:], "rejected": json.dumps([CALL])},
            ("hi", f"chosen: ho\nrejected: {SHOWN_CALL}"),
        ),
    ],
)
def test_data_rows_are_shown_as_prompt_and_response(
    schema: RowSchema, form: FormatConfig, row: object, shown: tuple[str, str]
) -> None:
    sample = data_sample(json.dumps(row), form, schema)
    assert (sample.prompt, sample.response, sample.reward) == (*shown, None)


@pytest.mark.parametrize(
    "row",
    [
        '{"message": "What is 1+1?"}',
        '{"message": ["hi", "ho"]}',
        '{"message": 7}',
        '{"message": "7"}',
        '{"message": {"role": "user"}}',
        '{"message": "{}"}',
        '{"messages": []}',
        "[1]",
        json.dumps({"message": "[" * 100_000}),
    ],
)
def test_a_data_row_without_messages_is_shown_as_it_is(row: str) -> None:
    shown = data_sample(row, FormatConfig(), "sft")
    assert (shown.prompt, shown.response, shown.reward) == (row, "", None)


def test_text_that_a_database_cannot_hold_is_replaced() -> None:
    assert sanitize_text("a\x00b\ud800") == "a\ufffdb?"
