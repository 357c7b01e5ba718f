"""`trinity push-to-hub`: publishes a run's model with a card made from its record."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trinity.errors import ManifestError, RunFailed, UserError
from trinity.run.model_card import model_card, model_to_publish
from trinity.run.runs import ConfigOption, JobDirOption, RunArgument, find_job_dir, place_of
from trinity.weights.manifest import MANIFEST_NAME
from trinity.weights.stored import StoredModel, is_delta, read_manifest

CARD = "README.md"


def push_to_hub(
    repository: Annotated[
        str, typer.Argument(help="The repository on the hub, such as me/adder.", show_default=False)
    ],
    run: RunArgument = None,
    config: ConfigOption = None,
    job_dir: JobDirOption = None,
    newest: Annotated[
        bool, typer.Option("--newest", help="The newest version instead of the best.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Only for you, where the repository is new.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the card and the files; send nothing.")
    ] = False,
) -> None:
    """Publish the best version of a run on the Hugging Face hub, with a model card.

    The token is that of `hf auth login` or HF_TOKEN; HF_ENDPOINT names another hub.
    """
    directory = find_job_dir(*place_of(run, config, job_dir))
    found = model_to_publish(directory, newest=newest)
    card = model_card(directory, found)
    with _whole(found) as model:
        if dry_run:
            print(card)
            for path in _files(model):
                print(f"would send {path.name} ({path.stat().st_size:,} bytes)")
        else:
            print(_send(repository, model, card, private))


@contextmanager
def _whole(model: StoredModel) -> Iterator[StoredModel]:
    if not is_delta(model.path):
        yield model
        return
    from trinity.weights.whole import whole_model  # zstandard is not where services do not run

    try:
        with whole_model(model.path, read_manifest(model.path).roots) as files:
            yield replace(model, path=files)
    except ManifestError as error:
        raise UserError(
            f"{error}; `trinity run` goes on with the run and writes it again"
        ) from error


def _files(model: StoredModel) -> list[Path]:
    return [path for path in sorted(model.path.iterdir()) if path.name not in (MANIFEST_NAME, CARD)]


def _send(repository: str, model: StoredModel, card: str, private: bool) -> str:
    """Sends everything in one commit; returns its address."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    files = [CommitOperationAdd(path.name, str(path)) for path in _files(model)]
    card_file = CommitOperationAdd(CARD, card.encode())
    message = f"Version {model.version} of stage {model.stage}"
    try:
        hub = HfApi()
        hub.create_repo(repository, private=private, exist_ok=True)
        return str(hub.create_commit(repository, [*files, card_file], commit_message=message))
    except HFValidationError as error:
        raise UserError(f"{repository} is no name of a repository: {error}") from error
    except (HfHubHTTPError, OSError) as error:
        raise RunFailed(f"the hub did not take {repository}: {error}") from error
