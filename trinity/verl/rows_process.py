"""A process that runs a user's class of rows and sampler, as veRL does, and writes the rows.

python -m trinity.verl.rows_process

The one request has veRL's section `data`, the `files` of each split, the `model` and the `folder`.
"""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from trinity.config.checks.packages import not_installed
from trinity.runtime.process.channel import RequestChannel

_PACKAGE = "pkg://"
_TOLD = "update"
"""The method of a sampler that veRL calls after each batch."""


def main() -> None:
    """Writes the rows of each split; answers with the result or a one-line error."""
    channel = RequestChannel()
    request = next(channel.requests())
    sys.path.append(request["import_from"])
    try:
        result = _make(request)
    except Exception as error:  # whatever a user's class raises, veRL's absence included
        traceback.print_exc()
        told = not_installed(error) if isinstance(error, ModuleNotFoundError) else None
        result = {"error": told or f"{type(error).__name__}: {error}".splitlines()[0]}
    channel.write(result)


def _make(request: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf

    resolved = OmegaConf.create({key: request[key] for key in ("data", "files", "model")})
    config = resolved.data
    files = OmegaConf.to_container(resolved.files, resolve=True)
    assert isinstance(files, dict)
    tokenizer = _tokenizer(resolved.model, bool(config.get("trust_remote_code")))
    found: dict[str, Any] = {
        "files": {},
        "counts": {},
        "is_ordered": False,
        "told_after_batches": False,
    }
    for split, paths in files.items():
        dataset = _dataset(config, paths, tokenizer, config[f"{split}_max_samples"])
        order = None
        if split == "train" and config.get("sampler", {}).get("class_path"):
            sampler = _load(config.sampler.class_path, config.sampler.class_name)(
                data_source=dataset, data_config=config
            )
            order = [int(row) for row in islice(iter(sampler), len(dataset))]
            found["is_ordered"] = True
            found["told_after_batches"] = hasattr(sampler, _TOLD)
        target = Path(request["folder"]) / f"{split}.parquet"
        found["counts"][split] = _write(dataset, order, target)
        found["files"][split] = str(target)
    return found


def _dataset(config: Any, paths: Any, tokenizer: Any, max_samples: int) -> Any:
    custom = config.get("custom_cls", {})
    module, name = custom.get("path"), custom.get("name")
    if not module:
        module, name = "pkg://verl.utils.dataset.rl_dataset", "RLHFDataset"
    rows = _load(module, name)
    arguments = {
        "data_files": paths,
        "tokenizer": tokenizer,
        "processor": None,
        "config": config,
        "max_samples": max_samples,
    }
    taken = inspect.signature(rows).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in taken.values())
    return rows(**{key: arguments[key] for key in arguments if takes_all or key in taken})


def _load(path: str, name: str) -> Any:
    """Returns a class of a file, or of a module as `pkg://module`, by veRL's ways to name them."""
    if path.startswith(_PACKAGE):
        module = importlib.import_module(path.removeprefix(_PACKAGE).replace("/", "."))
        return getattr(module, name)
    file = Path(path.removeprefix("file://"))
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not here: run the command where the script is run")
    spec = importlib.util.spec_from_file_location(f"rows_of_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _tokenizer(model: str | None, trusts_code: bool) -> Any:
    """Returns the model's tokenizer; None if it cannot be loaded, as few classes need it."""
    if not model:
        return None
    from transformers import AutoTokenizer

    directory = Path(model).expanduser()
    name = str(directory) if directory.is_dir() else model
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trusts_code)
    except (OSError, ValueError) as error:
        text = str(error).splitlines()[0]
        sys.stderr.write(f"the dataset class gets no tokenizer, {name} cannot be loaded: {text}\n")
        return None


def _write(dataset: Any, order: list[int] | None, target: Path) -> int:
    """Writes the rows of a class's own table, or each row as it gives it; returns their number."""
    import datasets

    table = getattr(dataset, "dataframe", None)
    if isinstance(table, datasets.Dataset):
        rows = table if order is None else table.select(order)
    else:
        numbers = range(len(dataset)) if order is None else order
        rows = datasets.Dataset.from_list([_plain(dataset[number]) for number in numbers])
    if not len(rows):
        raise ValueError(f"the class has no rows for {target.name}")
    rows.to_parquet(str(target))
    return len(rows)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row without values that a file cannot hold; its messages become the prompt."""
    plain = {key: value for key, value in row.items() if _is_data(value)}
    if "prompt" not in plain and "raw_prompt" in plain:
        plain["prompt"] = plain.pop("raw_prompt")
    return plain


def _is_data(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_data, value.values()))
    if isinstance(value, list | tuple):
        return _all_data(value)
    return value is None or isinstance(value, bool | int | float | str)


def _all_data(values: Iterable[Any]) -> bool:
    return all(map(_is_data, values))


if __name__ == "__main__":
    main()
