"""`trinity version`: the installed versions."""

from trinity.run.progress.summary import installed_versions


def version() -> None:
    """Show the version of this project and of every package that can change a result."""
    for name, number in installed_versions().items():
        print(f"{name:20} {number}")
