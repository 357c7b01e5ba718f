"""A script's own class of rows runs once, in a process, and a run reads what it wrote."""

from pathlib import Path

import pyarrow.parquet
import pytest

from tests.unit.verl.builders import flat, missing
from trinity.errors import UserError
from trinity.verl.convert import convert
from trinity.verl.settings import VerlSettings, read_sources
from trinity.verl.work import ConversionOptions
from trinity.verl.written_rows import WrittenRows, write_rows

OWN = '''
class Numbers:
    """Rows of no file, as a class of veRL's gives them to its loader."""

    def __init__(self, data_files, tokenizer, config, max_samples=-1):
        self.first = config.first
        self.count = 6 if max_samples < 0 else max_samples

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        question = [{"role": "user", "content": f"{self.first + row} + 1?"}]
        return {
            "raw_prompt": question,
            "reward_model": {"ground_truth": str(self.first + row + 1)},
            "tensor": object(),
        }


class Backwards:
    def __init__(self, data_source, data_config):
        self.count = len(data_source)

    def __iter__(self):
        return iter(range(self.count - 1, -1, -1))


class Told(Backwards):
    def update(self, batch):
        raise AssertionError("nothing calls it here")


class Broken:
    def __init__(self, data_files, tokenizer, config):
        raise KeyError("no such column")


class Endless:
    def __init__(self, data_files, tokenizer, config):
        while True:
            pass
'''


def settings_of(folder: Path, name: str, *more: str) -> VerlSettings:
    file = folder / "own.py"
    file.write_text(OWN)
    keys = ("data.train_files=a.parquet", "data.val_files=[]", "+data.first=10")
    own = (f"data.custom_cls.path={file}", f"data.custom_cls.name={name}")
    return read_sources([*keys, *own, *more], {}, None)


def test_a_class_of_rows_runs_once_and_a_sampler_orders_them(tmp_path: Path) -> None:
    sampler = (f"data.sampler.class_path={tmp_path / 'own.py'}", "data.sampler.class_name=Told")
    settings = settings_of(tmp_path, "Numbers", *sampler, "data.train_max_samples=3")
    without = convert(settings)
    keys = ("custom_cls.path", "sampler.class_name", "train_max_samples=3")
    assert all(any(key in line for line in missing(without)) for key in keys)
    written = write_rows(settings, tmp_path / "out", 60)
    assert written.summary == f"wrote 3 rows to {tmp_path}/out/train.parquet"
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["13", "12", "11"]
    assert rows[0]["prompt"] == [{"role": "user", "content": "12 + 1?"}]
    assert "tensor" not in rows[0]
    found = convert(settings, ConversionOptions(rows=written))
    taskset = "buffer.explorer_input.taskset"
    expected = {
        f"{taskset}.path": str(tmp_path / "out" / "train.parquet"),
        f"{taskset}.data_selector.selector_type": "sequential",
    }
    assert expected.items() <= flat(found.values).items()
    assert not any("data." in line for line in missing(found) if "first" not in line)
    assert any("its `update` is not called" in line for line in found.report)


@pytest.mark.parametrize(
    ("name", "seconds", "said"),
    [
        ("Broken", 60, r"the rows could not be made: KeyError: 'no such column'"),
        ("Absent", 60, r"the rows could not be made: AttributeError: .*Absent"),
        ("Endless", 2, r"not made in 2 seconds: give --write-rows-seconds more"),
    ],
)
def test_a_class_that_fails_or_never_ends_is_told_in_one_sentence(
    tmp_path: Path, name: str, seconds: float, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        write_rows(settings_of(tmp_path, name), tmp_path / "out", seconds)


def test_there_must_be_something_to_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which the script does not set: leave it out"):
        write_rows(read_sources(["data.train_files=a.parquet"], {}, None), tmp_path, 1)


def test_evaluations_are_written_beside() -> None:
    files = {"train": Path("rows/train.parquet"), "val": Path("rows/val.parquet")}
    written = WrittenRows(files, {"train": 9, "val": 2}, False, False)
    assert written.summary == "wrote 9 rows to rows/train.parquet, 2 to rows/val.parquet"
    found = convert(read_sources(["data.shuffle=True"], {}, None), ConversionOptions(rows=written))
    inputs = "buffer.explorer_input"
    expected = {
        f"{inputs}.taskset.data_selector.selector_type": "shuffle",
        f"{inputs}.eval_tasksets[0].path": "rows/val.parquet",
    }
    assert expected.items() <= flat(found.values).items()
