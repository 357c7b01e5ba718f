"""The server's use of Data-Juicer, which is imported on first use or by `load`."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROWS_A_PROCESS = 256
"""Fewer rows are faster without another process."""


class BadRequest(Exception):
    """The request is invalid; the text says why."""


def load() -> None:
    """Imports Data-Juicer; raises ImportError if it is not installed."""
    for module in ("data_juicer.core.data", "data_juicer.ops"):
        importlib.import_module(module)


@dataclass(frozen=True, slots=True)
class Session:
    """Loaded operators."""

    operators: Sequence[Any]
    most_processes: int

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "Session":
        """Loads the operators; raises BadRequest for those that cannot be loaded."""
        if request.get("pipeline_type", "experience") != "experience":
            raise BadRequest("this server supports only pipeline_type experience")
        listed = request.get("operators") or _from_file(request.get("config_path"))
        if not isinstance(listed, list) or not listed:
            raise BadRequest("give operators, a list of {name: {arguments}}, or config_path")
        from data_juicer.ops import load_ops  # type: ignore[import-not-found]  # in its environment

        try:
            operators = load_ops([_alone(operator) for operator in listed])
        except Exception as error:  # names and arguments are the user's
            raise BadRequest(f"{type(error).__name__}: {error}") from error
        return cls(operators, int(request.get("np") or 1))

    def process(self, stream: bytes) -> tuple[bytes, dict[str, float]]:
        """Returns the remaining rows with the columns that operators added, and metrics."""
        import pyarrow as pa
        from data_juicer.core.data import NestedDataset  # type: ignore[import-not-found]
        from datasets import Dataset

        try:
            table = pa.ipc.open_stream(stream).read_all()
        except pa.ArrowInvalid as error:
            raise BadRequest(f"arrow_data is no Arrow stream: {error}") from error
        rows = NestedDataset(Dataset(table))
        num_processes = min(self.most_processes, 1 + table.num_rows // ROWS_A_PROCESS)
        for operator in self.operators:
            operator.num_proc = num_processes
            if rows.num_rows:
                rows = rows.process(operator)
        left = rows.with_format("arrow")[:] if rows.num_rows else table.slice(0, 0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, left.schema) as writer:
            writer.write_table(left)
        figures = {"input_count": float(table.num_rows), "output_count": float(left.num_rows)}
        return sink.getvalue().to_pybytes(), figures


def _alone(operator: Any) -> Any:
    """Sets one process by default; `process` adjusts the number to the rows."""
    if not isinstance(operator, dict) or len(operator) != 1:
        raise BadRequest(f"{operator!r} is no operator: write {{name: {{arguments}}}}")
    [(name, arguments)] = operator.items()
    return {name: {"num_proc": 1, **(arguments or {})}}


def _from_file(path: Any) -> Any:
    """Reads the operators from a configuration file of Data-Juicer."""
    if not path:
        return None
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file).get("process")
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise BadRequest(f"config_path {path}: {error}") from error
