"""One rank of the gang: `python -m services.trainer.rank`, started only by the trainer service.

It imports the heavy libraries, joins the gang, reports that it is ready, and trains the stages
ordered.
"""

import logging
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from services.trainer.messages import (
    LOG_FORMAT_VARIABLE,
    LOG_LEVEL_VARIABLE,
    METRICS_VARIABLE,
    RankReady,
    RankStageFailed,
    StageOrder,
)
from services.trainer.rank.link import RankLink, die_with_parent
from services.trainer.rank.model_parts import (
    ModelParts,
    default_num_threads,
    load_model_parts,
)
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.sizing.stage_sizes import is_out_of_memory, trainer_remedies
from trinity.errors import InvalidRequest, NotFound, PreconditionFailed, RunFailed, UserError
from trinity.runtime.logs import configure_logging
from trinity.runtime.retry import StopRequested
from trinity.runtime.telemetry import lifecycle, metrics

if TYPE_CHECKING:  # it imports torch
    from services.trainer.collectives import Ranks

logger = logging.getLogger(__name__)

GANG_TIMEOUT = timedelta(days=365)
"""Ranks wait for the first one as long as it waits for a batch, which is limited separately."""
LIBRARY_ENVIRONMENT = {
    "VERL_LOGGING_LEVEL": "WARN",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
FAILED = 1
NOT_RETRYABLE = (UserError, RunFailed, PreconditionFailed, InvalidRequest, NotFound)
"""Errors that a retry does not cure."""


class StdoutToLog:
    """Logs what libraries print, at debug level."""

    def write(self, text: str) -> int:
        """Logs every line that is not empty."""
        for line in text.splitlines():
            if line.strip():
                logger.debug("printed", extra={"line": line.strip()})
        return len(text)

    def flush(self) -> None:
        """Has no effect: text is not buffered."""

    def isatty(self) -> bool:
        """Returns False: libraries ask before they choose colours."""
        return False


def main(load_parts: Callable[[], ModelParts] = load_model_parts) -> int:
    """Serves orders until told to stop; returns 0, or 1 after a reported failure."""
    _prepare_process()
    link = RankLink.from_environment()
    parts = load_parts()
    from services.trainer.collectives import join_gang

    # Ray, imported by verl, adds fields to log records.
    logging.setLogRecordFactory(logging.LogRecord)
    parts.make_deterministic(default_num_threads())
    ranks = join_gang(GANG_TIMEOUT)
    link.send_event(RankReady())
    if ranks.is_first:
        lifecycle.start("trinity-trainer", {"trinity.rank": "0"})
        if METRICS_VARIABLE in os.environ:
            metrics.forward_to(link.send_measured)
    try:
        return _serve(link, ranks, parts)
    finally:
        lifecycle.stop()


def _prepare_process() -> None:
    """Ties the process to the service, and configures its log, which takes what libraries print."""
    die_with_parent()
    name = f"trainer-rank-{os.environ['RANK']}"
    level = os.environ.get(LOG_LEVEL_VARIABLE, "INFO")
    is_json = os.environ.get(LOG_FORMAT_VARIABLE) == "json"
    configure_logging(name, level, "json" if is_json else "text")
    sys.stdout = StdoutToLog()
    warnings.simplefilter("ignore")
    for variable, value in LIBRARY_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)


def _serve(link: RankLink, ranks: "Ranks", parts: ModelParts) -> int:
    """Trains the stages ordered; returns the exit code."""
    from services.trainer.rank.stage import run_stage

    while (order := link.next_order()) is not None:
        try:
            link.send_event(run_stage(order, ranks=ranks, link=link, parts=parts))
        except StopRequested:
            break
        except Exception as error:  # the edge of a stage: every error is reported
            if link.stop.is_set():
                logger.info("abandoned the stage: the gang stops")
                break
            logger.exception("the stage failed on this rank")
            link.send_event(failure_of(error, order))
            return FAILED
    return 0


def failure_of(error: Exception, order: StageOrder | None = None) -> RankStageFailed:
    """Returns a failure with a reason that a person can act on."""
    if isinstance(error, NOT_RETRYABLE):
        return RankStageFailed(reason=str(error), can_retry=False)
    if is_out_of_memory(error) and order is not None:
        plan = StagePlan.model_validate_json(order.plan_json)
        return RankStageFailed(
            reason=f"the trainer is out of memory ({_first_line(error)}): {trainer_remedies(plan)}",
            can_retry=False,
        )
    return RankStageFailed(reason=f"{type(error).__name__}: {error}", can_retry=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    # Destroying process groups and engines can hang; everything that counts is on disk by now.
    code = main()
    logging.shutdown()
    os._exit(code)
