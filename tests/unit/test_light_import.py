"""`import trinity` takes no time, and `trinity.Run` is there when it is asked for."""

import subprocess
import sys

HEAVY = ("grpc", "pydantic", "numpy", "torch", "typer")


def test_the_package_imports_nothing_and_has_run() -> None:
    code = (
        "import sys, trinity\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
        "print(*[getattr(trinity, name).__name__ for name in ('Run', 'AsyncRun')])\n"
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "Run AsyncRun", "[]"], done.stderr
