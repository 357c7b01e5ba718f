"""A thousand damaged files: each is a configuration or gets sentences, never a traceback."""

import copy
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trinity.config.check import check_file
from trinity.config.docs.catalog import all_keys
from trinity.config.docs.resolved import resolve_config

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FILES = [ROOT / "examples/addition/addition.yaml", *sorted((HERE / "guide").glob("*.yaml"))]
TREES = [yaml.safe_load(file.read_text()) for file in FILES]
NAMES = sorted({key.path.split(".")[-1].removesuffix("[]") for key in all_keys()} - {"<name>"})

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**70),
    st.floats(),
    st.sampled_from(["", "none", "grpo", "a.b.C", "${", "${x}", "${oc.env:NO_SUCH}", "-1", "1e-5"]),
    st.sampled_from(["???", "both", "train", "sft", "file", "queue", "client", "mix", "~", "%"]),
    st.text(max_size=8),
)
names = st.one_of(st.sampled_from(NAMES), st.text(max_size=6), st.integers(), st.booleans())
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = [at] if at else []
    for key, value in items:
        found += places(value, (*at, key)) if isinstance(value, dict | list) else [(*at, key)]
    return found


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    tree = copy.deepcopy(draw(st.sampled_from(TREES)))
    for _ in range(draw(st.integers(1, 4))):
        candidates = places(tree)
        if not candidates:
            break
        *way, last = draw(st.sampled_from(candidates))
        parent = tree
        for part in way:
            parent = parent[part]
        match draw(st.sampled_from(["replace", "remove", "rename", "add"])):
            case "replace":
                parent[last] = draw(values)
            case "remove":
                del parent[last]
            case "rename" if isinstance(parent, dict):
                parent[draw(names)] = parent.pop(last)
            case _ if isinstance(parent, dict):
                parent[draw(names)] = draw(values)
    return tree


@settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tree=damaged())
def test_a_damaged_file_is_a_configuration_or_gets_sentences(tmp_path: Path, tree: Any) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    report = check_file(file)
    assert report.plan or report.errors or (report.reading and report.reading.planned)
    if report.plan and report.reading:
        assert resolve_config(report.plan, report.reading.source).tree
    for mistake in report.errors:
        assert mistake.strip()
        assert "Traceback" not in mistake
        assert "pydantic" not in mistake
