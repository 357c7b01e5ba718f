"""Advantages and losses of a copy of veRL, run in a rank on the tensors of its batch.

A file that `trinity config from-verl` writes names a function. Its file is loaded under a private
name when the first batch comes: there `verl` is the copy, of which only the listed files are
loaded, and the rank's own veRL stays as it is.
"""

import __future__

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from trinity.errors import UserError
from trinity.rewards.verl_manager import STUBBED, Stub, refuse_changes
from trinity.rft.algorithm.advantage_fn import AdvantageFn
from trinity.rft.algorithm.policy_loss_fn import PolicyLossFn
from trinity.runtime.security.credentials import operator_allows
from trinity.types import JsonObject
from trinity.user_code.adopt.gathering import importable
from trinity.user_code.adopt.loading import TRUST_VARIABLE, kept_statements

COPY = "verl"
_IMPORT = "_trinity_import"


class CopiedFunction:
    """A function of a copy of veRL, with the arguments that its trainer gives to it.

    class Advantage(CopiedAdvantage):
        folder = "/projects/mine"
        file, name = "verl/trainer/ppo/ray_trainer.py", "compute_advantage"
        keep = {"verl/trainer/ppo/ray_trainer.py": ("compute_advantage",)}
        files = {"verl/trainer/ppo/ray_trainer.py": "<sha256>"}
        arguments = {"adv_estimator": "config.algorithm.adv_estimator"}
        config = {"algorithm": {"adv_estimator": "grpo"}}
    """

    folder: ClassVar[str]
    """Holds the package `verl`."""
    file: ClassVar[str]
    name: ClassVar[str]
    keep: ClassVar[Mapping[str, Sequence[str]]]
    """The names that it needs of each file; no other statement of the copy runs."""
    files: ClassVar[Mapping[str, str]]
    """The same files, with the SHA-256 of when the job was converted."""
    arguments: ClassVar[Mapping[str, str]]
    """Expressions of `config` by the function's parameters."""
    config: ClassVar[JsonObject]
    """veRL's configuration, as the script has it."""

    def __init_subclass__(cls) -> None:
        """Raises: UserError in a process with credentials whose operator has not allowed it."""
        super().__init_subclass__()
        if "folder" in vars(cls) and not operator_allows(TRUST_VARIABLE):
            raise UserError(
                f"{cls.__name__} would run code of {cls.folder} in a process that holds "
                f"credentials: its operator may allow that with {TRUST_VARIABLE}=true in its "
                "environment"
            )

    def load(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Returns the function and its values. Raises: UserError if the copy has changed."""
        from omegaconf import OmegaConf

        folder = Path(self.folder)
        refuse_changes(folder, self.files)
        module = _Copy(folder, self.keep).module(self.file)
        config = OmegaConf.create(dict(self.config))
        values = {
            name: eval(written, {"config": config})  # the copy's own code
            for name, written in self.arguments.items()
        }
        return vars(module)[self.name], values


class CopiedAdvantage(CopiedFunction, AdvantageFn):
    """Calls `compute_advantage` of a copy's trainer with a whole batch."""

    def __init__(self) -> None:
        self._function, self._values = self.load()

    def __call__(self, exps: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the batch with the advantages that the copy computes."""
        mask_BT = exps.batch["response_mask"].long()
        exps.batch["response_mask"] = exps.batch["attention_mask"] = mask_BT
        exps.batch["responses"] = _Sized(mask_BT)
        return self._function(exps, **self._values), kwargs


class _Sized:
    """Stands for a batch's tokens, of which an advantage asks the shape alone."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.size, self.device = tensor.shape, tensor.size, tensor.device


class CopiedLoss(CopiedFunction, PolicyLossFn):
    """Calls a policy loss of a copy with a part of a batch."""

    tensors: ClassVar[Mapping[str, str]]
    """The parameters that take tensors, each with the tensor's name in Trinity-RFT."""
    loss_agg_mode: ClassVar[str]
    """`token-mean` if the loss averages over tokens, else over rows."""

    def __init_subclass__(cls) -> None:
        """Wants the tensors that the function takes."""
        super().__init_subclass__()
        cls.wanted_keys = sorted({*cls.tensors.values()} - {"logprob"})

    def __init__(self, backend: str = COPY) -> None:
        super().__init__(backend=backend)
        self._function, self._values = self.load()

    def __call__(self, logprob: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the loss of these rows, without the copy's metrics."""
        known = {"logprob": logprob, **{self.mapper.to_trinity(k): v for k, v in kwargs.items()}}
        known["action_mask"] = known["action_mask"].long()
        given = {name: known[tensor] for name, tensor in self.tensors.items()}
        answer = self._function(**given, **self._values)
        return answer[0] if isinstance(answer, tuple) else answer, {}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns nothing: the script's configuration has all values."""
        return {}


class _Copy:
    """The files of a copy as modules with private names; all else of it raises when it is used."""

    def __init__(self, folder: Path, keep: Mapping[str, Sequence[str]]) -> None:
        self._folder = folder
        self._keep = keep
        code = f"{folder} {sorted(keep.items())}"
        self._prefix = f"_verl_{sha256(code.encode()).hexdigest()[:8]}"

    def module(self, file: str) -> ModuleType:
        """Returns the module of a file, of those of its statements that are kept."""
        name = f"{self._prefix}.{file.removesuffix('.py').replace('/', '.')}"
        if name in sys.modules:
            return sys.modules[name]
        path = self._folder / file
        tree = ast.parse(path.read_bytes(), str(path))
        tree.body = kept_statements(tree, set(self._keep[file]))
        tree = ast.fix_missing_locations(_Imports(file, self._folder).visit(tree))
        module = ModuleType(name)
        vars(module).update({"__file__": str(path), _IMPORT: self._imported})
        sys.modules[name] = module
        flags = __future__.annotations.compiler_flag
        try:
            exec(compile(tree, str(path), "exec", flags, dont_inherit=True), vars(module))
        except Exception:
            del sys.modules[name]
            raise
        return module

    def _imported(self, module: str, name: str | None = None) -> Any:
        """Returns a module of the copy or a name of one, else a stub."""
        file = f"{module.replace('.', '/')}.py"
        below = f"{module.replace('.', '/')}/{name}.py"
        if name is None:
            return self.module(file) if file in self._keep else _Package(self._imported, module)
        if below in self._keep:
            return self.module(below)
        return getattr(self.module(file), name) if file in self._keep else Stub(f"{module}.{name}")


class _Package(Stub):
    """A package of the copy, of which the modules are loaded that are listed."""

    def __init__(self, imported: Callable[[str, str], Any], name: str) -> None:
        super().__init__(name)
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = self._imported(self.__name__, name)
        is_stub = isinstance(found, Stub)
        return _Package(self._imported, f"{self.__name__}.{name}") if is_stub else found


class _Imports(ast.NodeTransformer):
    """Takes imports of veRL from the copy; packages that are missing become stubs, unless tried."""

    def __init__(self, file: str, folder: Path) -> None:
        self._above = Path(file).parent.parts
        self._folder = folder

    def visit_Try(self, node: ast.Try) -> ast.Try:
        """Leaves packages in it to Python, as their absence is answered."""
        names = [each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)]
        if any(self._is_of_copy(name) for each in names for name in self._modules(each)):
            self.generic_visit(node)
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        """Splits an import by module."""
        return [self._made(node, alias, alias.name, None) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:
        """Splits an import by name."""
        if node.module == "__future__":
            return [node]
        return [self._made(node, a, self._modules(node)[0], a.name) for a in node.names]

    def _modules(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        above = self._above[: len(self._above) - node.level + 1] if node.level else ()
        return [".".join([*above, *([node.module] if node.module else [])])]

    def _is_of_copy(self, module: str) -> bool:
        return module.partition(".")[0] == COPY

    def _made(self, node: ast.stmt, alias: ast.alias, module: str, name: str | None) -> ast.stmt:
        top = module.partition(".")[0]
        if not self._is_of_copy(module) and top not in STUBBED and importable(top, self._folder):
            kept = ast.Import([alias]) if name is None else ast.ImportFrom(module, [alias], 0)
            return ast.copy_location(kept, node)
        bound = alias.asname or name or top
        wanted = [module if alias.asname or name else top, *([name] if name else [])]
        arguments: list[ast.expr] = [ast.Constant(word) for word in wanted]
        call = ast.Call(ast.Name(_IMPORT, ast.Load()), arguments, [])
        return ast.copy_location(ast.Assign([ast.Name(bound, ast.Store())], call), node)
