"""verifiers 0.4: task sets, and episodes as its own environment server plays them."""

import asyncio
import itertools
import os
from collections.abc import Collection, Iterator
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.clients import eval as eval_clients
from verifiers.v1.clients.base import DEFAULT_LIMITS, BaseClientConfig
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.runtimes import PrimeConfig, SubprocessConfig
from verifiers.v1.utils.loaders import (
    env_config_type,
    load_environment,
    load_harness,
    resolve_env_config,
)

from .program import CannotLoad, module_of, shown

LOCAL = "subprocess"
CONTAINERS = ("docker", "podman", "apptainer")
FETCHING = "verifiers.v1.harnesses."
"""Its harnesses install their programs with uv or npm where they run."""

_CERTIFICATES = httpx.create_ssl_context()


def _connect(config: BaseClientConfig) -> httpx.AsyncClient:
    """Returns the client of an address, with the certificates that all share.

    verifiers keeps one for each address, and each run has another: with certificates each would
    take 0.9 MB and 29 ms of a CPU.
    """
    times = httpx.Timeout(**config.timeout.model_dump())
    return httpx.AsyncClient(timeout=times, limits=DEFAULT_LIMITS, verify=_CERTIFICATES)


eval_clients.build_async_httpx = _connect


class VerifiersProgram:
    """One environment of verifiers, with its task set."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()
        self._serving: Any = None

    async def load(self, path: str, arguments: dict[str, Any]) -> None:
        """Loads the environment. Raises: CannotLoad."""
        try:
            config = _config(module_of(path), dict(arguments.get("env") or {}))
            self._roles = agent_config_fields(config)
            _check_roles(path, self._roles)
            _check_retries([config, *self._roles.values()])
            self._env = load_environment(config)
        except CannotLoad:
            raise
        except Exception as error:  # a task set's code may raise anything
            raise CannotLoad(f"verifiers cannot load {path}: {shown(error)}") from error
        self._rows = self._tasks(path, arguments.get("num_tasks"))

    async def notes(self) -> list[str]:
        """Returns sentences about the needs of a run: network, logins, programs."""
        return list(self._notes())

    async def rows(self, count: int) -> list[dict[str, Any]]:
        """Returns the next rows: the data of tasks, without defaults."""
        return list(itertools.islice(self._rows, count))

    async def play(self, row: dict[str, Any], address: str, key: str, model: str) -> dict[str, Any]:
        """Plays an episode; its model is asked at the address.

        The first one starts the servers that all share, which may want a login.
        """
        async with self._starting:
            if self._serving is None:
                serving = self._env.serving()
                await serving.__aenter__()
                self._serving = serving
        kind = type(self._env.taskset).task_type()
        data = kind.data_type().model_validate(row)
        task = kind(data, self._env.config.taskset.task)
        variable = f"TRINITY_{next(self._numbers)}_API_KEY"  # no program inherits such a name
        os.environ[variable] = key
        try:
            client = vf.EvalClientConfig(base_url=address, api_key_var=variable)
            context = vf.ModelContext(client=client, model=model, sampling=vf.SamplingConfig())
            episode = await self._env.run_episode(task, context)
        finally:
            del os.environ[variable]
        failures = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        rewards: dict[str, float] = {}
        metrics: dict[str, float] = {}
        for trace in episode.traces:
            rewards |= {name: part.value for name, part in trace.rewards.items() if part}
            metrics |= {name: part for name, part in trace.metrics.items() if part is not None}
        return {
            "failures": [] if episode.ok else [f"{each.type}: {each.message}" for each in failures],
            "is_ok": episode.ok,
            "num_agents": len(episode.traces),
            "rewards": rewards,
            "metrics": metrics,
        }

    async def close(self) -> None:
        """Ends the shared servers."""
        if self._serving is not None:
            await self._serving.__aexit__(None, None, None)

    def _tasks(self, path: str, num_tasks: int | None) -> Iterator[dict[str, Any]]:
        tasks = self._env.taskset
        if num_tasks is not None:
            tasks = tasks.take(num_tasks)
        elif not tasks.bounded:
            raise CannotLoad(f"{path} has tasks without end: give `workflow_args.num_tasks`")
        fields = type(tasks).task_type().data_type().model_fields
        if excluded := [name for name, field in fields.items() if field.exclude]:
            raise CannotLoad(
                f"the tasks of {path} leave {', '.join(excluded)} out of what is stored: remove "
                "`exclude=True` there"
            )
        return (task.data.model_dump(mode="json", exclude_defaults=True) for task in tasks)

    def _notes(self) -> Iterator[str]:
        ((name, agent),) = self._roles.items()
        harness = load_harness(self._env.config.agent_harnesses()[name])
        runtime = agent.runtime.type
        if runtime in CONTAINERS:
            yield f"its episodes run in {runtime}, which pulls their images"
        elif runtime != LOCAL:
            yield f"its episodes run at {runtime}: that needs the network and a login there"
        elif harness.EXECUTES_CODE:
            yield (
                "commands of the model run on this machine, as the explorer's user: "
                "`workflow_args.env.agent.runtime.type: docker` has a container for it"
            )
        if type(harness).__module__.startswith(FETCHING):
            yield (
                f"the harness `{harness.config.id}` fetches its program when it first runs: that "
                "needs the network"
            )
        if judges := self._env.config.taskset.task.judges:
            names = ", ".join(judge.id for judge in judges)
            yield f"its judges ({names}) ask models elsewhere: that needs the network and keys"


def _config(module: str, env: dict[str, Any]) -> Any:
    """Returns an environment's configuration; agents run in processes unless they say otherwise."""
    taskset = {**(env.get("taskset") or {}), "id": module}
    kind = env_config_type(module, env.get("id") or "")
    for name, field in kind.model_fields.items():
        own = field.default
        if isinstance(own, vf.AgentConfig) and "runtime" not in own.model_fields_set:
            assert isinstance(own.runtime, PrimeConfig)
            local = SubprocessConfig().model_dump()
            env = {**env, name: {"runtime": local, **(env.get(name) or {})}}
    return resolve_env_config({**env, "taskset": taskset})


def _check_roles(path: str, roles: Collection[str]) -> None:
    if len(roles) != 1:
        raise CannotLoad(
            f"{path} is played by several agents ({', '.join(roles)}), and a run trains one: give "
            "an environment of one agent"
        )


def _check_retries(configs: list[Any]) -> None:
    if any(config.retries.max_retries or config.retries.rules for config in configs):
        raise CannotLoad(
            "`workflow_args.env` sets `retries`, and answers of both attempts would be trained: "
            "leave it out, failed runs are repeated by the explorer"
        )
