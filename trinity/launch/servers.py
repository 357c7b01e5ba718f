"""Looks whether this machine, and the servers that a plan names, could run it now."""

import http.client
from collections.abc import Iterator
from urllib.parse import urlsplit

from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.schema.base import Args
from trinity.errors import UserError
from trinity.launch.gpus import check_gpus

ANSWER_SECONDS = 3.0
HEALTH = "/health"


def what_is_missing(plan: ExperimentPlan) -> Iterator[str]:
    """Yields a sentence for each thing that a start on this machine would lack now."""
    try:
        check_gpus(plan)
    except UserError as error:
        yield str(error)
    for url in dict.fromkeys(url for stage in plan.stages for url in _data_juicer_urls(stage)):
        if why := _why_no_answer(url):
            yield (
                f"Data-Juicer's server at {url} does not answer ({why}): start "
                "`python -m trinity.data_juicer.server`, or correct "
                "`service.data_juicer.server_url`"
            )


def _data_juicer_urls(stage: StagePlan) -> Iterator[str]:
    """Yields the addresses of Data-Juicer that operators of a stage send rows to.

    None of a server that the run starts itself.
    """
    service = stage.config.service.data_juicer
    if service is not None and service.auto_start:
        return
    named: list[tuple[str, Args]] = [(operator.name, operator.args) for operator in stage.operators]
    for pipeline in (
        stage.experience_buffer.task_pipeline,
        *(taskset.task_pipeline for taskset in stage.tasksets),
    ):
        if pipeline is not None:
            named += [(operator.name, operator.args) for operator in pipeline.operators]
    for name, args in named:
        url = args.get("server_url")
        if name == "data_juicer" and isinstance(url, str):
            yield url


def _why_no_answer(url: str) -> str:
    """Returns why a server does not answer; empty if it does, whatever it says."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}{HEALTH}")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return ""
