"""Compares functions taken from copies of veRL with the same functions in their own files.

python -m benchmarks.verl_functions PROJECT/run.sh ...

Each script is converted; the advantage and the loss of its copy that are taken get random tensors.
Another process imports the whole files of the copy, with stubs for packages that are not installed,
and calls the functions with the same tensors. Values and gradients must be equal bit by bit.
"""

import ast
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from trinity.errors import UserError
from trinity.rft.algorithm.advantage_fn.adapting import TokenData
from trinity.verl.convert import convert
from trinity.verl.rules.fork_functions import FUNCTIONS
from trinity.verl.settings import read_starts

ROWS, TOKENS, GROUP = 8, 12, 4
_ALONE = """
import importlib, importlib.abc, importlib.machinery, json, sys, types
import numpy, torch, omegaconf
class Stub(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full = self.__name__ + "." + name
        return importlib.import_module(full) if full in whole else Stub(full)
    def __call__(self, *given, **_):
        return given[0] if given and callable(given[0]) else Stub("called")
    def __mro_entries__(self, bases):
        return ()
    def __or__(self, other):
        return self
    __ror__ = __or__
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in whole or name.split(".")[0] not in (*missing, "verl"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        made = Stub(spec.name)
        made.__path__ = [folder + "/" + spec.name.replace(".", "/")]
        return made
    def exec_module(self, module):
        pass
folder, whole, missing, module, name, tensors, columns, given = json.load(sys.stdin)
sys.meta_path.insert(0, Finder())
function = getattr(importlib.import_module(module), name)
tensors = {key: torch.tensor(value) for key, value in tensors.items()}
given = {k: omegaconf.OmegaConf.create(v) if isinstance(v, dict) else v for k, v in given.items()}
if columns:
    class Data:
        batch, meta_info = tensors, {}
        non_tensor_batch = {key: numpy.array(value) for key, value in columns.items()}
    answer = function(Data(), **given)
    found = [answer.batch["advantages"]]
else:
    tensors["log_prob"].requires_grad_()
    loss = function(**tensors, **given)
    loss = loss[0] if isinstance(loss, tuple) else loss
    loss.backward()
    found = [loss.detach(), tensors["log_prob"].grad]
print(json.dumps([each.double().tolist() for each in found]))
"""


def main() -> None:
    """Prints a line for each function; exits with 1 if one differs."""
    are_equal = [line for path in sys.argv[1:] for line in compared(Path(path))]
    sys.exit(not all(are_equal))


def compared(script: Path) -> list[bool]:
    """Compares the functions that are taken from the copy around a script."""
    try:
        parts = convert(next(iter(read_starts([str(script)])))).parts
    except UserError as error:
        print(f"{script}: {error}")
        return []
    if f"{FUNCTIONS}.py" not in parts:
        print(f"{script}: no function is taken")
        return []
    module = imported(parts[f"{FUNCTIONS}.py"])
    results = []
    for kind, call in (("Advantage", advantage), ("Loss", loss)):
        if (part := getattr(module, kind, None)) is not None:
            ours, theirs = call(part)
            is_equal = all(map(torch.equal, ours, theirs))
            print(f"{script}: {part.__doc__} `{part.name}`: {'equal' if is_equal else 'DIFFERS'}")
            results.append(is_equal)
    return results


def imported(text: str) -> ModuleType:
    """Imports a file of a plug-in folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{FUNCTIONS}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(FUNCTIONS, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def alone(
    part: Any, tensors: dict[str, torch.Tensor], columns: dict[str, list[str]], given: object
) -> list[torch.Tensor]:
    """Calls the function in a process that imports its whole file."""
    whole = [name.removesuffix(".py").replace("/", ".") for name in part.files]
    lists = {name: tensor.tolist() for name, tensor in tensors.items()}
    module = part.file.removesuffix(".py").replace("/", ".")
    sent = [part.folder, whole, missing(part), module, part.name, lists, columns, given]
    words = [sys.executable, "-c", _ALONE]
    done = subprocess.run(
        words, input=json.dumps(sent), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return [torch.tensor(each, dtype=torch.float64) for each in json.loads(done.stdout)]


def missing(part: Any) -> list[str]:
    """Packages that the files import and that are not installed, and those of engines."""
    trees = [ast.parse(Path(part.folder, name).read_bytes()) for name in part.files]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    tops = {name.partition(".")[0] for name in names} - {"verl", "None"}
    return sorted({top for top in tops if importlib.util.find_spec(top) is None} | {"ray", "vllm"})


def mask() -> torch.Tensor:
    """Answers of 1 to all tokens, padded on their right."""
    lengths = torch.randint(1, TOKENS + 1, (ROWS, 1))
    return (torch.arange(TOKENS)[None] < lengths).long()


def loss(part: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The loss and its gradient, here and there."""
    torch.manual_seed(0)
    log_prob = -torch.rand(ROWS, TOKENS) * 3
    tensors = {
        "logprob": log_prob.clone().requires_grad_(),
        "old_logprob": log_prob + torch.randn(ROWS, TOKENS) * 0.4,
        "advantages": torch.randn(ROWS, 1).expand(ROWS, TOKENS).contiguous(),
        "action_mask": mask(),
    }
    made = part()
    value, _ = made(**tensors)
    value.backward()
    gradient = tensors["logprob"].grad
    assert gradient is not None
    given = {name: tensors[key].detach() for name, key in part.tensors.items()}
    theirs = alone(part, given, {}, plain(made.load()[1]))
    return [value.detach().double(), gradient.double()], theirs


def advantage(part: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The advantages, here and there."""
    torch.manual_seed(0)
    answers = mask()
    rewards = torch.zeros(ROWS, TOKENS)
    rewards[torch.arange(ROWS), answers.sum(-1) - 1] = torch.randint(0, 2, (ROWS,)).float()
    batch = {
        "token_level_rewards": rewards,
        "token_level_scores": rewards.clone(),
        "old_log_probs": -torch.rand(ROWS, TOKENS) * answers,
    }
    columns = {"uid": np.array([str(row // GROUP) for row in range(ROWS)])}
    here = {**{name: each.clone() for name, each in batch.items()}, "response_mask": answers.bool()}
    made = part()
    answer, _ = made(TokenData(batch=here, non_tensor_batch=columns))
    prompts = torch.ones(ROWS, 5, dtype=torch.long)
    whole = {
        **batch,
        "response_mask": answers,
        "attention_mask": torch.cat([prompts, answers], dim=1),
        "responses": answers,
    }
    theirs = alone(part, whole, {"uid": columns["uid"].tolist()}, plain(made.load()[1]))
    return [answer.batch["advantages"].double()], theirs


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Sections of a configuration as mappings."""
    return {
        name: OmegaConf.to_container(each) if OmegaConf.is_config(each) else each
        for name, each in values.items()
    }


if __name__ == "__main__":
    main()
