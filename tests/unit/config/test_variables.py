"""What most files leave open is filled in without OmegaConf, and exactly as OmegaConf would."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trinity.config.loading.tree import fill_variables, has_interpolation

PIECES = st.sampled_from(
    [
        "${oc.env:HERE}", "${oc.env:HERE,x}", "${oc.env:ABSENT}", "${oc.env:ABSENT,./a-b/c.d}",
        "${oc.env:ABSENT,null}", "${oc.env:ABSENT,True}", "${oc.env:ABSENT,8}",
        "${oc.env:ABSENT,08}", "${oc.env:ABSENT,1e3}", "${oc.env:ABSENT,.5}", "${oc.env:ABSENT,}",
        "${oc.env:ABSENT, a}", "${oc.env:ABSENT,${a}}", "${a}", "${b.c}", "${b}", "${nothing}",
        "${a", "$", "{", "}", "text", "/", "\\", " ", "???",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=3).map("".join)


def as_omegaconf_says(tree: dict[str, Any]) -> Any:
    try:
        return OmegaConf.to_container(OmegaConf.create(tree), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException:
        return None


@given(a=TEXTS | st.integers() | st.none(), c=TEXTS | st.booleans(), d=TEXTS)
def test_what_is_filled_in_is_what_omegaconf_says(a: Any, c: Any, d: str) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HERE", "/there")
        environment.delenv("ABSENT", raising=False)
        tree = {"a": a, "b": {"c": c}, "list": [d]}
        values = fill_variables(tree)
        if not has_interpolation(values):
            assert values == as_omegaconf_says(tree)


def test_names_paths_counts_and_other_keys_need_no_omegaconf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("ABSENT", raising=False)
    tree = {
        "path": "${oc.env:HOME}/data",
        "model": "${oc.env:ABSENT,Qwen/Qwen2.5-1.5B-Instruct}",
        "again": "${model}",
        "count": "${oc.env:ABSENT,8}",
    }
    assert fill_variables(tree) == {
        "path": "/home/me/data",
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        "again": "Qwen/Qwen2.5-1.5B-Instruct",
        "count": "8",
    }
