"""Where results of runs go."""

from trinity.runtime.subjects import RUNS_PREFIX, runs_subject


def test_results_go_where_the_buffer_listens() -> None:
    subject = runs_subject("default", "5b8f6a5e-0d0b-4f0c-9a4b-9f6f1a1c2d3e", "rft")
    assert subject == "trinity.runs.default.5b8f6a5e-0d0b-4f0c-9a4b-9f6f1a1c2d3e.rft"
    assert subject.startswith(f"{RUNS_PREFIX}.")
