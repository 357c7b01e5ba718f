"""`trinity context`: names for deployments, as `--context` and in place of addresses."""

from typing import Annotated

import typer

from trinity.run.contexts import Context, Contexts, contexts_file

app = typer.Typer(help="Name the addresses and tokens of deployments.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(help="The context's name.", show_default=False)]


@app.command("set")
def set_context(
    name: NameArgument,
    synchronizer: Annotated[
        str, typer.Option("--synchronizer", help="Its address, host:port.", show_default=False)
    ],
    buffer: Annotated[
        str, typer.Option("--buffer", help="Its address, host:port.", show_default=False)
    ],
    security: Annotated[
        str,
        typer.Option("--security", help="The folder with certificates, and a token or --token."),
    ] = "",
    token: Annotated[str, typer.Option("--token", help="A token; `-` asks for it.")] = "",
) -> None:
    """Store a context, or change it; `--context NAME` and `trinity context use` choose it."""
    if token == "-":
        token = typer.prompt("token", hide_input=True)
    context = Context(synchronizer=synchronizer, buffer=buffer, security=security, token=token)
    context.deployment().check()
    stored = Contexts.load()
    stored.contexts[name] = context
    stored.save()
    print(f"context {name} is stored in {contexts_file()}")


@app.command()
def use(
    name: Annotated[
        str, typer.Argument(help="The context; `-` for this machine's runs.", show_default=False)
    ],
) -> None:
    """Choose the context of commands that name no run."""
    stored = Contexts.load()
    if name != "-":
        stored.named(name)
    stored.current = "" if name == "-" else name
    stored.save()


@app.command("list")
def list_contexts() -> None:
    """List the contexts; a star marks the current one."""
    for line in Contexts.load().lines():
        print(line)


@app.command()
def delete(name: NameArgument) -> None:
    """Delete a context."""
    stored = Contexts.load()
    stored.named(name)
    del stored.contexts[name]
    stored.current = "" if stored.current == name else stored.current
    stored.save()
