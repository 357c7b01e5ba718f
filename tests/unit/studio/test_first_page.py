"""The page that a browser sees first loads little: it is to be there in two seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from streamlit.components.v2.component_manager import BidiComponentManager

from tests.unit.studio.test_runs import a_run
from trinity.studio.server import skip_foreign_components

HEAVY = ("pandas", "pyarrow", "tokenizers", "torch", "transformers", "altair", "trinity.workflows")
SCRIPT = f"""
import json, sys
from pathlib import Path
from streamlit.testing.v1 import AppTest
from trinity.studio.context import StudioContext, StudioOptions, set_context

set_context(StudioContext(StudioOptions(places=(Path(sys.argv[1]),))))
page = AppTest.from_string("from trinity.studio.pages import runs\\nruns.show()").run(timeout=300)
assert not page.exception
loaded = [[name for name in {HEAVY} if name in sys.modules]]
other = '''
import streamlit as st
st.components.v2.component("list", html="<p></p>", js="export default () => 1")(data=dict(a=[1]))
'''
assert not AppTest.from_string(other).run(timeout=300).exception
loaded.append([name for name in {HEAVY} if name in sys.modules])
print(json.dumps([[text.value for text in page.text], *loaded]))
"""


def test_it_loads_no_large_package(tmp_path: Path) -> None:
    a_run(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=True,
    )
    texts, loaded, with_a_list = json.loads(done.stdout)
    assert texts[0].startswith("1 run")
    assert loaded == []
    assert "pandas" in with_a_list, "the control: Streamlit loads it for a list"


def test_streamlit_looks_for_no_components_of_other_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That reads what each installed package says of itself, before the first page."""
    kind = BidiComponentManager
    looked: list[str] = []

    def scan() -> list[object]:
        looked.append("all")
        return []

    monkeypatch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", scan)
    monkeypatch.setattr(
        kind, "discover_and_register_components", kind.discover_and_register_components
    )
    kind().discover_and_register_components(start_file_watching=False)
    assert looked == ["all"], "the control: it would"
    skip_foreign_components()
    kind().discover_and_register_components(start_file_watching=False)
    assert looked == ["all"]
