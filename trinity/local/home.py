"""The directory of the stack for a job that uses another job's database."""

from pathlib import Path

_NAME = "home.txt"


def write_home(job_dir: Path, home: Path) -> None:
    """Records the directory of the stack."""
    if home != job_dir:
        (job_dir / _NAME).write_text(f"{home}\n")


def home_of(job_dir: Path) -> Path:
    """Returns the stack's directory: the job's own, unless it was started in another job's."""
    try:
        return Path((job_dir / _NAME).read_text().strip())
    except FileNotFoundError:
        return job_dir
