"""Calls a reward manager of a copy of veRL with one answer, as its own trainer would.

A file that `trinity config from-verl` writes names the class; it is imported at the first answer,
in the process that runs users' rewards, where `verl` is then the copy. Packages that only its
trainer and rollout need are stubs that raise once they are used.
"""

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from trinity.errors import UserError
from trinity.rewards.reward import RewardFn
from trinity.types import JsonObject

if TYPE_CHECKING:
    import numpy as np
    import torch

STUBBED = ("ray", "vllm", "sglang", "flash_attn", "megatron", "deepspeed")
"""Packages of trainers and engines, which no reward needs."""
_COPY = "verl"
_FINISHED = "stop"


class ManagerReward(RewardFn):
    """A reward manager of a copy of veRL, which scores an answer without seeing the others.

    class Reward(ManagerReward):
        folder = "/projects/mine"
        place = "verl.workers.reward_manager.naive.NaiveRewardManager"
        files = {"verl/workers/reward_manager/naive.py": "<sha256>"}
        arguments = {"tokenizer": "tokenizer", "num_examine": "0", "compute_score": "compute_score"}
    config = {"data": {"max_response_length": 512}}
        model = "/models/tiny"
    """

    folder: ClassVar[str]
    """Holds the package `verl` that the class is of."""
    place: ClassVar[str]
    """The class, by its dotted path."""
    files: ClassVar[Mapping[str, str]]
    """Files below `folder` with the SHA-256 that they had when the job was converted."""
    arguments: ClassVar[Mapping[str, str]]
    """Sources of the arguments that the copy's trainer makes it with; `**` is those by name."""
    config: ClassVar[JsonObject]
    """veRL's configuration, as the script has it."""
    model: ClassVar[str]
    """The model whose tokenizer writes prompts and answers."""
    sums_all = False

    def __init__(self) -> None:
        self._manager: Any = None
        self._tokenizer: Any = None

    def __call__(
        self,
        *,
        response: str,
        response_token: Sequence[int],
        messages: Sequence[JsonObject],
        task: JsonObject,
        finish_reason: str | None = None,
    ) -> dict[str, float]:
        """Returns the score of an answer, and the numbers that the manager adds to it.

        Raises: UserError if the copy has changed or needs a package that is not installed.
        """
        if self._manager is None:
            self._load()
        prompt = self._tokenizer.apply_chat_template(
            _asked(messages), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        ids = list(response_token) or self._tokenizer.encode(response, add_special_tokens=False)
        end = self._tokenizer.eos_token_id
        if finish_reason == _FINISHED and end is not None and ids[-1:] != [end]:
            ids = [*ids, end]
        scored: dict[str, float] = self._score(one_row(prompt, ids, task))
        return scored

    def _load(self) -> None:
        """Makes the manager as veRL's trainer makes it."""
        from omegaconf import OmegaConf
        from transformers import AutoTokenizer

        refuse_changes(Path(self.folder), self.files)
        use_copy(Path(self.folder))
        if any(name.startswith("../") for name in self.files):
            sys.path.append(str(Path(self.folder).parent))
        module, _, name = self.place.rpartition(".")
        source = vars(import_of_copy(module))[name]
        self._tokenizer = AutoTokenizer.from_pretrained(self.model)
        config = OmegaConf.create(dict(self.config))
        self._manager = source(**self._evaluated(config))

    def _evaluated(self, config: Any) -> dict[str, Any]:
        """The arguments, as the copy's trainer computes them from its configuration.

        Raises: UserError for one that reads more than the configuration and the tokenizer.
        """
        section = config.get("reward_model") or {}
        known = {
            "config": config,
            "tokenizer": self._tokenizer,
            "num_examine": 0,
            "compute_score": None,  # no function of the user's own
            "final_compute_score": score_function(),
            "reward_kwargs": dict(section.get("reward_kwargs") or {}),
        }
        found: dict[str, Any] = {}
        for name, written in self.arguments.items():
            try:
                value = eval(written, {}, known)  # the copy's own code, in its process
            except Exception as error:
                raise UserError(
                    f"{self.place} wants {name}={written}, which cannot be computed here: {error}"
                ) from error
            found |= value if name == "**" else {name: value}
        return found

    def _score(self, row: tuple[dict[str, "torch.Tensor"], dict[str, "np.ndarray"]]) -> Any:
        data = import_of_copy("verl").DataProto.from_dict(*row)
        takes_dict = "return_dict" in inspect.signature(type(self._manager).__call__).parameters
        scored = self._manager(data, return_dict=True) if takes_dict else self._manager(data)
        tensor = scored["reward_tensor"] if isinstance(scored, dict) else scored
        more = scored.get("reward_extra_info", {}) if isinstance(scored, dict) else {}
        numbers = {str(name): values[0] for name, values in more.items() if len(values) == 1}
        plain = {name: float(n) for name, n in numbers.items() if isinstance(n, int | float)}
        return {**plain, "score": float(tensor.sum())}


def one_row(
    prompt: Sequence[int], response: Sequence[int], task: JsonObject
) -> tuple[dict[str, "torch.Tensor"], dict[str, "np.ndarray"]]:
    """veRL's batch of one answer without padding: tensors, and the columns of its row."""
    import numpy as np
    import torch

    ids = torch.tensor([[*prompt, *response]])
    tensors = {
        "prompts": ids[:, : len(prompt)],
        "responses": ids[:, len(prompt) :],
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(ids.shape[1])[None],
    }
    columns: dict[str, np.ndarray] = {}
    for name, value in task.items():
        columns[name] = np.empty(1, dtype=object)
        columns[name][0] = value
    return tensors, columns


def refuse_changes(folder: Path, files: Mapping[str, str]) -> None:
    """Raises UserError if a file of the copy is not as it was when the job was converted."""
    for name, expected in files.items():
        path = folder / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        if found != expected:
            why = "is missing" if found == "missing" else "has changed"
            raise UserError(
                f"{path} {why} since the job was converted: convert the script again, with --force"
            )


def _asked(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """The messages in front of the last answer."""
    roles = [message.get("role") for message in messages]
    if "assistant" not in roles:
        return list(messages)
    return list(messages)[: len(roles) - 1 - roles[::-1].index("assistant")]


def score_function() -> Any:
    """The copy's choice of a reward by `data_source`; None where its release has none."""
    try:
        module = import_of_copy("verl.utils.reward_score")
    except UserError:
        return None
    names = ("default_compute_score", "_default_compute_score")
    return next((vars(module)[name] for name in names if name in vars(module)), None)


def import_of_copy(name: str) -> ModuleType:
    """Imports a module of the copy. Raises: UserError if it needs a package that is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise UserError(
            f"the copy of veRL cannot be imported: {error}: install the package that has "
            f"`{package}` where the explorer runs"
        ) from error


def use_copy(folder: Path) -> None:
    """Makes `verl` the copy in this process, with stubs of trainers and engines.

    Raises: UserError if another veRL is imported here already.
    """
    there = sys.modules.get(_COPY)
    file = getattr(there, "__file__", None)
    if there is not None and not (file and Path(file).is_relative_to(folder)):
        raise UserError(
            f"a veRL is imported where answers are scored, and the copy in {folder} cannot "
            "be: leave the part that imports it out of this run"
        )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # at its end, where it hides no other module
        finder = _Finder(str(folder))
        sys.path.insert(0, finder.alone.name)
        sys.meta_path.insert(0, finder)


class Stub(ModuleType):
    """A module or an attribute of a package that is not there: it raises when it is used."""

    __path__ = []  # noqa: RUF012  # as ModuleType has it

    def __getattr__(self, name: str) -> "Stub":
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub(f"{self.__name__}.{name}")

    def __call__(self, *arguments: object, **_: object) -> object:
        decorated = arguments[0] if len(arguments) == 1 and callable(arguments[0]) else None
        if decorated is not None:
            return decorated  # a decorator, such as `ray.remote`
        return _refuse(self.__name__)

    def __or__(self, _: object) -> "Stub":
        return self

    def __mro_entries__(self, _: tuple[object, ...]) -> tuple[type, ...]:
        return ()


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"{name} belongs to a trainer or an engine, which a part of a copy of veRL cannot use"
    )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the copy's `verl`, and stubs for `STUBBED`, in front of installed packages."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.alone = TemporaryDirectory(prefix="verl-copy-")
        """Holds `verl` alone: processes that a reward spawns get the path, not this object."""
        Path(self.alone.name, _COPY).symlink_to(Path(folder, _COPY))

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname == _COPY:
            return importlib.machinery.PathFinder.find_spec(_COPY, [self._folder])
        if fullname.partition(".")[0] not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module
