"""A whole stack on this machine, with the services that have no model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.services import StackContext, service_processes
from trinity.run.local.stack import LocalStack

REPOSITORY = str(Path(__file__).parents[3])
"""Where `tests` is looked for first: an installed package may bring one of its own."""
MODULES = {
    "explorer": "tests.support.model_free.explorer",
    "trainer": "tests.support.model_free.trainer",
}
"""What is started in place of `services.<name>`."""


def model_free_stack(
    job_dir: Path,
    *,
    modules: Mapping[str, str] = MODULES,
    environment: Mapping[str, Mapping[str, str]] | None = None,
    max_restarts: int | None = None,
    secure: bool = False,
    among: Callable[[StackContext], list[ProcessWithProbe]] = service_processes,
) -> LocalStack:
    """Use it as a context; `environment` holds further variables by the name of the service."""
    return LocalStack(
        job_dir=job_dir,
        environment=environment,
        services=model_free_services(modules, among),
        max_restarts=max_restarts,
        secure=secure,
    )


def model_free_services(
    modules: Mapping[str, str] = MODULES,
    among: Callable[[StackContext], list[ProcessWithProbe]] = service_processes,
) -> Callable[[StackContext], list[ProcessWithProbe]]:
    """Services of which some are started from other modules."""

    def services(around: StackContext) -> list[ProcessWithProbe]:
        return [_started_from(one, modules) for one in among(around)]

    return services


def _started_from(service: ProcessWithProbe, modules: Mapping[str, str]) -> ProcessWithProbe:
    module = modules.get(service.spec.name)
    if module is None:
        return service
    argv = [*service.spec.argv[:-1], module]
    env = {**service.spec.env, "PYTHONPATH": REPOSITORY}
    return replace(service, spec=replace(service.spec, argv=argv, env=env))
