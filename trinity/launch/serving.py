"""Serves the newest weights of a run, as an experiment in a directory beside the run's."""

from trinity.config.plan.parts import ServedRun
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.security.folder import VARIABLE, Security
from trinity.security.loopback import is_loopback

SUFFIX = "-serve"


def is_serve(plan: ExperimentPlan) -> bool:
    """Returns true when the plan serves a model."""
    return any(stage.mode == "serve" for stage in plan.stages)


def serve_plan(plan: ExperimentPlan) -> ExperimentPlan:
    """Uses a directory beside the run's: the run may continue, or not exist yet."""
    [stage] = plan.stages
    served = ServedRun(job_dir=plan.job_dir)
    return plan.model_copy(
        update={
            "label": f"{plan.label}{SUFFIX}",
            "job_dir": f"{plan.job_dir}{SUFFIX}",
            "stages": (stage.model_copy(update={"served": served}),),
        }
    )


def check_reach(plan: ExperimentPlan, *, secure: bool) -> None:
    """Refuses an address that other machines reach without certificates and tokens.

    Raises: UserError.
    """
    if not is_serve(plan) or secure or Security.from_environment().is_on:
        return
    host = plan.stages[0].config.explorer.listen_address
    if not is_loopback(host):
        raise UserError(
            f"refusing to serve at `explorer.listen_address: {host}`, where other machines reach "
            "it, without TLS and tokens: use 127.0.0.1, start it with `trinity run --secure`, or "
            f"set {VARIABLE} to a folder that `trinity certs` has made"
        )
