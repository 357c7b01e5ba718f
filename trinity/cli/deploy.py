"""`trinity deploy`: deploys experiments; each command imports its heavy modules itself."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trinity.cli.config_plan import ModelConfigOption
from trinity.cli.overrides import FileOption, WordsArgument, parse_overrides, split_words
from trinity.cli.run import AcceptChangesOption, AdoptedOption, PluginDirOption, use_plugins
from trinity.errors import UserError
from trinity.run.output import write_errors
from trinity.user_code.adopt.manifest import AdoptedPlace

if TYPE_CHECKING:
    from trinity.run.deploy.slurm import SlurmJob

app = typer.Typer(
    help="Write manifests and secrets, start and cancel experiments on running services.",
    no_args_is_help=True,
)


@app.command()
def render(
    words: WordsArgument = None,
    config: FileOption = None,
    target: Annotated[
        Literal["compose", "k8s", "nomad", "slurm"],
        typer.Option("--target", help="Orchestrator that places processes."),
    ] = "compose",
    overlay: Annotated[
        Literal["one-node", "cluster"],
        typer.Option("--overlay", help="With its own database and broker, or those of a cluster."),
    ] = "one-node",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path(
        "deployment"
    ),
    explorers: Annotated[int, typer.Option(min=1, help="Explorers to start with.")] = 1,
    model_config: ModelConfigOption = None,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
) -> None:
    """Write the manifests of an experiment; nothing is started, and no secret is written."""
    from trinity.config.loading.load import load_config
    from trinity.config.planning import plan_experiment
    from trinity.run.deploy import render as rendering_of
    from trinity.run.deploy.deployment import ExperimentDeployment, with_root
    from trinity.run.deploy.slurm import SlurmJob
    from trinity.run.deploy.submission import refuse_local_modes
    from trinity.run.deploy.values import read_values

    file, overrides = split_words(words, config, "trinity deploy render")
    use_plugins(plugin_dir, adopted, runs=False)
    plan = plan_experiment(load_config(file, parse_overrides(overrides)))
    values = read_values(output)
    root = str(Path.cwd()) if target == "slurm" else values.root
    deployment = ExperimentDeployment(
        plan=with_root(plan, Path.cwd(), root),
        explorers=explorers,
        plugin_dir=Path(root) / plugin_dir if plugin_dir else None,
        adopted=AdoptedPlace.below(Path(root), adopted) if adopted else None,
        values=values,
        here=plan,
        model_config=model_config,
    )
    if target == "slurm":
        _write_job(SlurmJob(deployment=deployment, file=file, overrides=overrides, output=output))
        return
    refuse_local_modes(plan)
    rendering = rendering_of.ManifestRenderer(
        deployment=deployment, target=target, overlay=overlay, output=output
    )
    with write_errors(output, "give another folder as `--output`"):
        rendering.write_manifests()
    print(f"{plan.label} for {target} is in {output}")
    images = rendering_of.image_commands(deployment)
    _print_commands("once, its images, in the source of this version", images)
    _print_commands("once, as docs/operations.md there explains", rendering.first_commands())
    _print_commands("then, and after each rendering", rendering.commands())
    _print_notes(rendering_of.size_notes(deployment))
    _print_notes(rendering_of.render_notes(deployment, target, overlay))


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"note: {note}")


def _print_commands(when: str, commands: Iterable[str]) -> None:
    if lines := "".join(f"  {command}\n" for command in commands):
        print(f"{when}:\n{lines}", end="")


def _write_job(job: "SlurmJob") -> None:
    with write_errors(job.output, "give another folder as `--output`"):
        command = job.write_script()
    print(f"{job.deployment.plan.label} for slurm is in {job.output}")
    _print_commands("now, as docs/slurm.md of the source explains", [command])
    _print_notes(job.notes())


@app.command()
def pin(
    folder: Annotated[Path, typer.Argument(help="Folder of a rendering.", show_default=False)],
) -> None:
    """Ask the registry which builds the tags of a rendering name now, and write their digests."""
    from trinity.run.deploy.deployment import ExperimentDeployment
    from trinity.run.deploy.registry import image_digest, without_digest
    from trinity.run.deploy.render import SERVICES
    from trinity.run.deploy.submission import read_plan
    from trinity.run.deploy.values import read_values, write_digests

    plan, values = read_plan(folder / "plan.json"), read_values(folder)
    deployment = ExperimentDeployment(plan=plan, explorers=1, plugin_dir=None, values=values)
    names = [name for name in SERVICES if name != "explorer" or deployment.needs_explorer]
    images = {name: deployment.images.full(name, deployment.variant) for name in names}
    try:
        digests = {name: image_digest(without_digest(image)) for name, image in images.items()}
    except ValueError as error:
        raise UserError(
            f"no digest was written: {error}; push the images, log in with `docker login`, or "
            f"correct `registry` and `tag` in {folder / 'values.yaml'}"
        ) from None
    write_digests(folder, digests)
    for name, digest in digests.items():
        print(f"{without_digest(images[name])}@{digest}")
    print(f"in {folder / 'values.yaml'}: render into the folder again")


@app.command()
def secrets(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.", show_default=False)],
    postgres: Annotated[
        str, typer.Option(help="The database, host:port as the services see it.")
    ] = "127.0.0.1:5432",
    nats: Annotated[str, typer.Option(help="The broker, likewise.")] = "127.0.0.1:4222",
) -> None:
    """Write the passwords of a deployment, each for its service; existing ones are kept."""
    from trinity.run.deploy.secret_folder import ServerAddresses, write_secrets

    with write_errors(folder, "give a separate folder as FOLDER"):
        write_secrets(folder, ServerAddresses(postgres=postgres, nats=nats))
    print(f"{folder} holds the secrets, readable by you alone: keep it out of version control")


@app.command()
def submit(
    plan: Annotated[
        Path, typer.Option("--plan", help="The plan that `render` wrote.", show_default=False)
    ],
    synchronizer: Annotated[str, typer.Option(help="host:port", show_default=False)],
    buffer: Annotated[str, typer.Option(help="host:port", show_default=False)],
    monitor: Annotated[
        Path | None,
        typer.Option(help="Feed the plan's monitor from here; its files go into this folder."),
    ] = None,
    accept_changes: AcceptChangesOption = False,
) -> None:
    """Start or resume an experiment on running services, and follow it to its end."""
    from trinity.run.deploy.submission import ExperimentSubmission, read_plan

    submission = ExperimentSubmission(
        plan=read_plan(plan),
        synchronizer=synchronizer,
        buffer=buffer,
        monitor=monitor,
        accepts_changes=accept_changes,
        accept_command="trinity deploy submit --accept-changes",
    )
    asyncio.run(submission.submit_and_follow())


@app.command()
def cancel(
    plan: Annotated[
        Path, typer.Option("--plan", help="The plan that `render` wrote.", show_default=False)
    ],
    synchronizer: Annotated[str, typer.Option(help="host:port", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why; shown with the experiment.")] = "cancelled",
) -> None:
    """Cancel an experiment on running services; `submit` of the same plan resumes it."""
    from trinity.run.deploy.submission import cancel_experiment, read_plan

    known = read_plan(plan)
    experiment_id = asyncio.run(cancel_experiment(known, synchronizer, reason))
    print(f"{known.label} ({experiment_id}) is cancelled")
