"""Names of Trinity-RFT: environment variables, and closed sets of its configuration."""

from enum import StrEnum

from trinity.rft.import_hook import resolve

EXPLORER_NAME = "explorer"
TRAINER_NAME = "trainer"
SELECTOR_METRIC = "selector_metric"
CHECKPOINT_ROOT_DIR_ENV_VAR = "TRINITY_CHECKPOINT_ROOT_DIR"
PREVIOUS_STAGE_CHECKPOINT_DIR_ENV_VAR = "TRINITY_PREV_STAGE_CKPT_DIR"
MODEL_PATH_ENV_VAR = "TRINITY_MODEL_PATH"
TASKSET_PATH_ENV_VAR = "TRINITY_TASKSET_PATH"
BUFFER_PATH_ENV_VAR = "TRINITY_BUFFER_PATH"
PLUGIN_DIRS_ENV_VAR = "TRINITY_PLUGIN_DIRS"
LOG_DIR_ENV_VAR = "TRINITY_LOG_DIR"
LOG_LEVEL_ENV_VAR = "TRINITY_LOG_LEVEL"
MAX_MODEL_LEN = 4096


class _Named(StrEnum):
    @classmethod
    def _missing_(cls, value: object) -> "_Named | None":
        return next((own for own in cls if own.value == str(value).lower()), None)


class PromptType(_Named):
    """The form of a training row."""

    MESSAGES = "messages"
    PLAINTEXT = "plaintext"


class StorageType(_Named):
    """The source of rows."""

    SQL = "sql"
    QUEUE = "queue"
    FILE = "file"


class SyncMethod(_Named):
    """The way of the weights."""

    NCCL = "nccl"
    CHECKPOINT = "checkpoint"
    MEMORY = "memory"


class SyncStyle(_Named):
    """The side that asks for new weights."""

    FIXED = "fixed"
    TRAINER_DRIVEN = "trainer_driven"
    EXPLORER_DRIVEN = "explorer_driven"
    FULLY_ASYNC = "fully_async"


class RunningStatus(StrEnum):
    """The state of a component."""

    RUNNING = "running"
    REQUIRE_SYNC = "require_sync"
    STOPPED = "stopped"


class OpType(StrEnum):
    """An operation on rewards."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"


def __getattr__(name: str) -> object:
    return resolve(__name__, name)
