"""Configurations that are changed by stored recipes: what each comes to, or where it is refused."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.unit.golden.adapters import ALGORITHM_NAMES, FUNCTIONS, acting_keys, surroundings
from tests.unit.golden.corpus import recipes
from tests.unit.golden.outcomes import outcome
from tests.unit.source_names import ROOT

BASES = Path(__file__).parent / "bases"
NUM_RECIPES = 110
SEED = 7
EXTREMES: tuple[Any, ...] = (0, -1, 1, 2**31, 2**63, 1e-12, 1e12, "", None, [], {}, True, "none")
PART_KEYS = {
    "advantage_fn": ("advantages", "token advantages"),
    "policy_loss_fn": ("policy losses",),
    "entropy_loss_fn": ("entropy losses",),
    "sample_strategy": ("sample strategies",),
}
OPERATORS = ("reward_std_filter", "pass_rate_calculator", "mask_response_truncated", "no_such")

Recipe = dict[str, Any]
Location = tuple[str | int, ...]


def bases() -> dict[str, Any]:
    """The files that are changed, by name."""
    files = sorted(BASES.glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def new_recipes() -> list[Recipe]:
    """A recipe names a base and steps `[location, "set" | "drop" | "rename", value]`."""
    chance = random.Random(SEED)
    trees = bases()
    recipes = [_of_algorithm(name, chance, sorted(trees)) for name in ALGORITHM_NAMES]
    while len(recipes) < NUM_RECIPES:
        base = chance.choice(sorted(trees))
        steps = [_step(trees[base], chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
        recipes.append({"base": base, "steps": steps})
    return recipes


def _of_algorithm(name: str, chance: random.Random, names: list[str]) -> Recipe:
    steps: list[Any] = [[["algorithm", "algorithm_type"], "set", name]]
    return {"base": chance.choice(names), "steps": steps}


def _step(tree: Any, chance: random.Random) -> list[Any]:
    places = list(_places(tree))
    place = list(chance.choice(places))
    kind = chance.choice(("type", "drop", "misspell", "part", "stages", "extreme", "key", "double"))
    match kind:
        case "type":
            return [place, "set", chance.choice(([1], {"a": 1}, "text", 3, 0.5, False))]
        case "drop":
            return [place, "drop", None]
        case "misspell" if isinstance(place[-1], str):
            return [place, "rename", _misspelled(place[-1], chance)]
        case "part":
            key = chance.choice(sorted(PART_KEYS))
            known = sorted(n for kind in PART_KEYS[key] for n in FUNCTIONS[kind].builtins)
            return [["algorithm", key], "set", chance.choice([*known, "none", "no_such"])]
        case "stages":
            return [["stages"], "set", _stages(chance)]
        case "key":
            key = chance.choice(list(acting_keys()))
            return [key.split("."), "set", chance.choice(EXTREMES)]
        case "double":
            numbers = [p for p in places if type(_get(tree, p)) in (int, float)]
            place = list(chance.choice(numbers))
            return [place, "set", _get(tree, tuple(place)) * 2]
    return [place, "set", chance.choice(EXTREMES)]


def _stages(chance: random.Random) -> list[Any]:
    made = []
    for name in chance.sample(("warm", "main", "last"), chance.randint(1, 3)):
        stage: dict[str, Any] = {"stage_name": name}
        if chance.random() < 0.5:
            stage["mode"] = chance.choice(("both", "train", "explore"))
        if chance.random() < 0.5:
            stage["algorithm"] = {"algorithm_type": chance.choice(("sft", "grpo", "ppo", "dpo"))}
        if chance.random() < 0.4:
            operators = [{"name": name} for name in chance.sample(OPERATORS, 2)]
            stage["data_processor"] = {"experience_pipeline": {"operators": operators}}
        made.append(stage)
    return made


def _misspelled(name: str, chance: random.Random) -> str:
    position = chance.randrange(len(name))
    return name[:position] + name[position + 1 :] if len(name) > 1 else name * 2


def _places(tree: Any, at: Location = ()) -> Iterator[Location]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*at, key))


def _get(tree: Any, place: Location) -> Any:
    for part in place:
        tree = tree[part]
    return tree


def mutated(tree: Any, recipe: Recipe) -> Any:
    """The tree after the steps; one whose place is gone does nothing."""
    tree = copy.deepcopy(tree)
    for place, what, value in recipe["steps"]:
        *way, last = place
        parent = tree
        for part in way:
            if isinstance(parent, dict) and what == "set":
                parent = parent.setdefault(part, {})
            elif isinstance(parent, dict) or (isinstance(parent, list) and isinstance(part, int)):
                parent = parent[part] if _has(parent, part) else None
        if not isinstance(parent, dict | list) or (what != "set" and not _has(parent, last)):
            continue
        if what == "set":
            if isinstance(parent, dict) or _has(parent, last):
                parent[last] = value
        elif what == "drop":
            del parent[last]
        elif isinstance(parent, dict):
            parent[value] = parent.pop(last)
    return tree


def _has(parent: Any, part: str | int) -> bool:
    if isinstance(parent, list):
        return isinstance(part, int) and part < len(parent)
    return part in parent


def changed_files(folder: Path) -> dict[str, Any]:
    """Returns the outcome of each base and each recipe's file, and the number of accepted ones."""
    with surroundings(ROOT):
        file = folder / "x.yaml"
        trees = bases()
        made = {
            f"{number:03} {recipe['base']}": _outcome(file, mutated(trees[recipe["base"]], recipe))
            for number, recipe in enumerate(recipes())
        }
        whole = {f"base {name}": _outcome(file, tree) for name, tree in trees.items()}
    accepted = sum("plan" in result for result in made.values())
    return {**whole, **made, "counts": {"recipes": len(made), "accepted": accepted}}


def _outcome(file: Path, tree: Any) -> dict[str, Any]:
    file.write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return outcome(file)
