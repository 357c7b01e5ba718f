"""The base of workflows that play environments of hubs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from trinity.config.model_code_policy import check_hub_code
from trinity.errors import UserError
from trinity.user_code.hubs.place import HUBS, HubPlace
from trinity.user_code.hubs.process import HubProcess, shared_hub
from trinity.workflows.workflow import Workflow


class HubWorkflow(Workflow):
    """Has the process of the taskset's hub, which all runs of the taskset share."""

    is_async = True
    shares_loop = True
    keeps_history = True
    gives_several_samples = True
    hub: ClassVar[str]

    @asynccontextmanager
    async def asked_hub(self) -> AsyncIterator[HubProcess]:
        """Gives the process. Raises: UserError for a path that is not a hub's, and if it may not
        be started here; HubFailed."""
        check_hub_code(self.hub)
        place = HubPlace.parse(self.task.source)
        if place is None or place.hub != self.hub:
            raise UserError(
                f"taskset {self.task.taskset!r}: the workflow `{self.hub}` plays tasks of its "
                f"hub ({' and '.join(HUBS)} are such): let `default_workflow_type: {self.hub}` be "
                "the taskset's, with `path`"
            )
        async with shared_hub(place) as hub:
            yield hub
