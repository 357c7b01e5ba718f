"""Notes on steps that a rendering leaves to its user."""

from collections.abc import Iterator

from trinity.config.checks.runtime import check_known
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.deploy.deployment import MODELS, Deployment
from trinity.deploy.kubernetes import Overlay
from trinity.deploy.render import Target
from trinity.errors import UserError


def notes(deployment: Deployment, target: Target, overlay: Overlay) -> tuple[str, ...]:
    """Returns the notes as sentences; there may be none."""
    return tuple(_notes(deployment, target, overlay))


def _notes(deployment: Deployment, target: Target, overlay: Overlay) -> Iterator[str]:
    if names := deployment.model_variables:
        yield _of_models(" and ".join(names), target)
    yield from _unseen(deployment.plan)
    monitor = deployment.plan.stages[0].config.monitor.monitor_type
    if monitor not in ("none", "tensorboard"):  # files of the latter are always written
        yield (
            f"`monitor.monitor_type: {monitor}`: the images have no monitor; call `trinity deploy "
            "submit` with `--monitor FOLDER` as well, where the services can be reached"
        )
    apart = target == "k8s" or (target, overlay) == ("nomad", "cluster")
    if apart and any(stage.sends_weights for stage in deployment.plan.stages):
        yield (
            "`sync_method: nccl`: between hosts explorers take the files, unless you give the "
            "trainer the variable TRINITY_TRAINER_TRANSFER_HOST, its address in a private network, "
            "and let explorers reach every port of it"
        )


def _unseen(plan: ExperimentPlan) -> Iterator[str]:
    """Yields the user's own parts that fail here; the explorer's image may have them."""
    try:
        check_known(plan)
    except UserError as error:
        for line in str(error).splitlines():
            yield f"{line} (as seen from here: the explorer fails the run unless it finds it)"


def _of_models(names: str, target: Target) -> str:
    match target:
        case "compose":
            return f"set {names} where you call compose: it hands them to the explorer"
        case "k8s":
            return (
                f"make a Secret `{MODELS}` with {names} for the explorer; the network policy "
                f"`{MODELS}` lets it reach port 443 alone"
            )
        case "nomad":
            return f"give {names} to the explorer's task, with a template of your own in its job"
