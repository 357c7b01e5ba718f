"""Collaborators shared by the RPC methods of the buffer."""

from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from services.buffer.features import FeatureLibrary
from services.buffer.functions import Functions
from services.buffer.handlers.composing import Composer
from services.buffer.priorities import Priorities
from services.buffer.servicer.polling import Poller
from services.buffer.servicer.uploads import UploadRoom
from services.buffer.store.database import Database
from services.buffer.stream import RunStream
from services.buffer.tasksets import TasksetLibrary

Context: TypeAlias = grpc.aio.ServicerContext


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Base of the classes of RPC methods that together make up the servicer."""

    database: Database
    poller: Poller
    library: TasksetLibrary
    features: FeatureLibrary
    composer: Composer
    functions: Functions
    priorities: Priorities
    stream: RunStream
    uploads: UploadRoom = field(default_factory=UploadRoom)
