"""The `trinity` commands: options with defaults, exit codes, and what programs read of them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.unit.golden.adapters import VERSION, Done, command_tree, surroundings, trinity
from tests.unit.golden.corpus import text_of, without_places
from tests.unit.golden.yaml_files import BASE
from tests.unit.source_names import ROOT

ADDITION = "examples/addition/addition.yaml"
GUIDE = "tests/unit/golden/bases/guide_grpo.yaml"
VERL = (
    "algorithm.adv_estimator=grpo",
    "data.train_files=/data/train.parquet",
    "data.train_batch_size=64",
    "data.max_prompt_length=128",
    "data.max_response_length=256",
    "actor_rollout_ref.model.path=/models/tiny",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.rollout.n=5",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.total_epochs=2",
    "trainer.project_name=demo",
    "trainer.experiment_name=sums",
)
WORDS: dict[str, tuple[str, ...]] = {
    "no word": (),
    "help": ("--help",),
    "version": ("--version",),
    "versions": ("version",),
    "unknown command": ("runn",),
    "unknown command of a group": ("config", "chek"),
    "unknown option": ("config", "check", "--strictly", ADDITION),
    "check good": ("config", "check", ADDITION),
    "check two": ("config", "check", ADDITION, GUIDE),
    "check strict": ("config", "check", "--strict", ADDITION, "explorer.runner_num=4"),
    "check planned": ("config", "check", ADDITION, "monitor.monitor_type=swanlab"),
    "check planned strictly": (
        "config",
        "check",
        "--strict",
        ADDITION,
        "monitor.monitor_type=swanlab",
    ),
    "check unknown key": ("config", "check", ADDITION, "trainer.grad_clp=1"),
    "check unknown workflow": (
        *("config", "check", ADDITION),
        "buffer.explorer_input.taskset.default_workflow_type=no_such",
    ),
    "check no file": ("config", "check"),
    "check missing file": ("config", "check", "no_such.yaml"),
    "show missing file": ("config", "show", "no_such.yaml"),
    "show mistaken": ("config", "show", ADDITION, "trainer.grad_clp=1"),
    "diff same": ("config", "diff", ADDITION, ADDITION),
    "diff missing": ("config", "diff", ADDITION, "no_such.yaml"),
    "explain": ("config", "explain", "algorithm.optimizer.lr"),
    "explain last part": ("config", "explain", "lr"),
    "explain unknown": ("config", "explain", "no_such_key"),
    "plan": ("config", "plan", ADDITION),
    "plan with memory": ("config", "plan", ADDITION, "--gpu-memory", "80", "--rows", "100"),
    "plan too little memory": ("config", "plan", ADDITION, "--gpu-memory", "0"),
    "init without a model": ("config", "init", "x.yaml"),
    "from verl nothing": ("config", "from-verl"),
    "from verl unknown script": ("config", "from-verl", "no_such.sh"),
    "run without a file": ("run",),
    "run missing file": ("run", "--config", "no_such.yaml"),
    "run planned": ("run", "-c", GUIDE, "--dry-run", "monitor.monitor_type=swanlab"),
    "run unknown key": ("run", "-c", ADDITION, "--dry-run", "trainer.grad_clp=1"),
    "status of nothing": ("status", "no/such/run"),
    "log of nothing": ("log", "no/such/run"),
    "why of nothing": ("why", "no/such/run"),
    "view of nothing": ("view", "no/such/run"),
    "lineage of nothing": ("lineage", "no/such/run", "--step", "1"),
    "export of nothing": ("export", "no/such/run", "--output", "x"),
    "feedback of nothing": ("feedback", "no/such/run", "--reward", "1"),
    "exclude of nothing": ("exclude", "no/such/run"),
    "include of nothing": ("include", "no/such/run"),
    "delete of nothing": ("delete", "no/such/run"),
    "retrain of nothing": ("retrain", "no/such/run"),
    "token without a key": ("token",),
    "certs of nothing": ("certs",),
    "render missing file": ("deploy", "render", "--config", "no_such.yaml"),
    "render for nothing": ("deploy", "render", "--config", ADDITION, "--target", "mesos"),
    "taskset without a command": ("taskset",),
}
MODEL = {
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 261,
    "tie_word_embeddings": True,
}
"""The sizes of the example's model, which may not have been prepared."""
RENDERINGS = {
    "compose": ("--target", "compose"),
    "k8s one-node": ("--target", "k8s", "--overlay", "one-node"),
    "k8s cluster": ("--target", "k8s", "--overlay", "cluster", "--explorers", "2"),
    "nomad cluster": ("--target", "nomad", "--overlay", "cluster"),
}


def options() -> dict[str, Any]:
    """Options and arguments of every command, without help texts."""
    return {name: list(map(_parameter, command.params)) for name, command in command_tree()}


def _parameter(parameter: Any) -> dict[str, Any]:
    """Names are those of the command line; an argument's is told to nobody but Python."""
    names = [*parameter.opts, *parameter.secondary_opts]
    told = {
        "names": names if names[0].startswith("-") else "argument",
        "type": _type(parameter.type_descriptor.annotation),
        "min": parameter.min,
        "max": parameter.max,
        "required": parameter.required,
        "many": parameter.nargs != 1 or getattr(parameter, "multiple", False),
        "default": "<version>" if parameter.default == VERSION else _plain(parameter.default),
        "flag": getattr(parameter, "is_flag", False),
        "env": parameter.envvar,
    }
    return {name: value for name, value in told.items() if value not in (None, False)}


def _plain(value: object) -> Any:
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _type(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def exit_codes(folder: Path) -> dict[str, Any]:
    """What each command line ends with, and whether it says something on which stream."""
    results: dict[str, Any] = {}
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "tests").symlink_to(ROOT / "tests")
    with surroundings(folder):
        for name, words in WORDS.items():
            done = trinity(*words)
            streams = [k for k, text in (("out", done.out), ("err", done.err)) if text.strip()]
            results[name] = {"exit code": done.code, "speaks on": streams}
    return results


def outputs(folder: Path) -> dict[str, Any]:
    """What programs read: YAML, JSON, keys that differ, and files that are written."""
    base = folder / "base.yaml"
    base.write_text(BASE, encoding="utf-8")
    other = folder / "other.yaml"
    other.write_text(BASE.replace("total_steps: 10", "total_steps: 11"), encoding="utf-8")
    model = ("--model", "/models/tiny", "--taskset", "/data/train.jsonl")
    with surroundings(ROOT):
        results = {
            "schema": without_texts(json.loads(trinity("config", "schema").out)),
            "show": yaml.safe_load(trinity("config", "show", str(base)).out),
            "diff": _difference(trinity("config", "diff", str(base), str(other))),
            "init": _written(folder / "init.yaml", "config", "init", *model),
            "init for GPUs": _written(
                folder / "gpus.yaml",
                *("config", "init", *model, "--gpus", "8", "--algorithm", "ppo"),
            ),
            "from verl": _written(folder / "verl.yaml", "config", "from-verl", *VERL),
            "to verl": trinity("config", "from-verl", "--to-verl", str(base)).out.splitlines(),
        }
    text = without_places(text_of(results), {"<tmp>": str(folder)})
    told: dict[str, Any] = json.loads(text)
    return told


def _difference(done: Done) -> list[str]:
    """Keys and values, without where they come from."""
    return [line.split("  # ")[0] for line in done.out.splitlines()]


def _written(file: Path, *words: str) -> Any:
    done = trinity(*words, "--output", str(file))
    return [done.code, yaml.safe_load(file.read_text()) if file.exists() else None]


def without_texts(schema: Any) -> Any:
    """A JSON Schema without texts for people and without names of classes.

    A definition stands where it is used first; elsewhere a reference leads to that place.
    """
    places: dict[str, str] = {}

    def plain(node: Any, at: str) -> Any:
        if isinstance(node, list):
            return [plain(item, f"{at}/{position}") for position, item in enumerate(node)]
        if not isinstance(node, dict):
            return node
        if isinstance(name := node.get("$ref"), str):
            if name in places:
                return {"$ref": places[name]}
            places[name] = at
            node = {**schema["$defs"][name.rpartition("/")[2]], **node}
        left_out = ("description", "title", "$comment", "$defs", "$ref", "$id")
        return {
            key: plain(value, f"{at}/{key}")
            for key, value in node.items()
            if not (key in left_out and not (isinstance(value, dict) and key != "$defs"))
        }

    return plain(schema, "#")


def renderings(folder: Path) -> dict[str, Any]:
    """Files of a deployment, those of YAML and JSON as what they hold."""
    results: dict[str, Any] = {}
    sizes = folder / "config.json"
    sizes.write_text(json.dumps(MODEL))
    with surroundings(ROOT):
        for name, words in RENDERINGS.items():
            output = folder / name.replace(" ", "-")
            places = ("-c", ADDITION, "-o", str(output), "--model-config", str(sizes))
            done = trinity("deploy", "render", *places, *words)
            results[name] = {"exit code": done.code}
            held = _files(output) if output.exists() else ()
            results |= {f"{name}: {path}": content for path, content in held}
    text = without_places(text_of(results), {"<tmp>": str(folder), "<version>": VERSION})
    text = text.replace(f'"subPath": "{str(ROOT)[1:]}/', '"subPath": "<root>/')
    # The digest is one of a plan, in which absolute paths are.
    text = re.sub(r"(experiment-examples-\w+)-[0-9a-f]{8}\b", r"\1-<digest>", text)
    told: dict[str, Any] = json.loads(text)
    return told


def _files(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        if path.name == "plan.json":
            yield name, "a plan"  # compared for every example
        elif path.suffix in (".yaml", ".yml", ".json"):
            yield name, list(yaml.safe_load_all(text))
        else:
            lines = (re.sub(r"\s*#.*", "", line).strip() for line in text.splitlines())
            yield name, [line for line in lines if line]
