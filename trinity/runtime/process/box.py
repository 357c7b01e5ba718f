"""A box that limits the files, network, memory and processes of others' code; also a program.

    python -I -S box.py <the box as JSON> <signal at parent's death> <command> [arguments...]

Three processes: this one, which passes on signals, output and the exit status; the first one of the
new pid namespace, which ends with the command; the command. If a part of the box cannot be made,
the command is not run and the exit code is 97. Only the standard library is imported.
"""

import contextlib
import ctypes
import errno
import functools
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

NO_BOX_EXIT_CODE = 97
BOX_USER = 61_000
"""User and group in a closed box that root starts: no distribution gives this number to anybody."""
MAX_OUTPUT_BYTES = 256 * 1024
"""Output that is passed on in each OUTPUT_SECONDS; more is left out."""
OUTPUT_SECONDS = 60.0
SCRATCH_BYTES = 64 * 1024**2
"""Size of the files in memory that a closed box has: `/tmp`, `/dev/shm`."""
LIBRARY_BYTES = 8 * 1024**3
"""Address space for code, beyond the limit on data: libraries of CUDA are large."""
MAX_STACK_BYTES = 64 * 1024**2
MAX_PROCESSES = 1024
PROBE_SECONDS = 60.0
_NEW_ROOT = "/sys"
"""A folder that exists everywhere and is in no box: the new root is built there."""
SYSTEM_PATHS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/alternatives"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs", "/etc/pki/tls/certs"),
)
_DEVICES = ("null", "full", "random", "urandom")
"""Without `zero`, which gives shared memory that no limit counts."""
_RELAYED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x8000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
_CLONE_NEW_ANY, _CLONE_THREAD = 0x7E020000, 0x10000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, MOUNT_SETATTR = -100, 0x8000, 442
PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2
libc = ctypes.CDLL(None, use_errno=True)
_BPF_LOAD, _BPF_JEQ, _BPF_JGE, _BPF_JSET, _BPF_AND, _BPF_RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_MMAP_FLAGS = _FIRST_ARGUMENT + 3 * 8
_MAP_SHARED_ANONYMOUS, _MAP_GROWSDOWN = 0x21, 0x100
_Calls = dict[str, int]
_EVERYWHERE = {"clone3": 435, "io_uring_setup": 425, "memfd_secret": 447}
_SYSTEM_CALLS: dict[str, tuple[int, _Calls]] = {
    "x86_64": (
        0xC000003E,
        {"mmap": 9, "clone": 56, "fork": 57, "vfork": 58, "shmget": 29, "msgget": 68}
        | {"mq_open": 240, "add_key": 248, "keyctl": 250, "unshare": 272, "setns": 308}
        | {"perf_event_open": 298, "memfd_create": 319, "bpf": 321, "userfaultfd": 323},
    ),
    "aarch64": (
        0xC00000B7,
        {"mmap": 222, "clone": 220, "shmget": 194, "msgget": 186, "mq_open": 180}
        | {"add_key": 217, "keyctl": 219, "unshare": 97, "setns": 268, "perf_event_open": 241}
        | {"memfd_create": 279, "bpf": 280, "userfaultfd": 282},
    ),
}
_KERNEL = ("unshare", "setns", "bpf", "perf_event_open", "io_uring_setup", "userfaultfd")
"""Ways to more rights, and parts of the kernel in which such ways are found."""
UNCOUNTED_CALLS = (
    "memfd_create",
    "memfd_secret",
    "shmget",
    "msgget",
    "mq_open",
    "add_key",
    "keyctl",
)
"""Ways to memory that no limit of a process counts."""
_Instruction = tuple[int, int, int, int]


class Box(NamedTuple):  # no dataclass: the import of their module takes a fifth of a start
    """The parts of this machine that code of others shares.

    An open box is for a user's own code: the same user, files, network and GPUs, but it can send no
    signal to a process outside, all of its processes end with it, and its output is bounded.

    A closed one is for code of others. It sees Python, the packages and what `readable` names, has
    no capability, and starts no process unless `has_children`.
    """

    is_open: bool = False
    has_network: bool = False
    has_children: bool = False
    has_channel: bool = True
    """Standard output is not output but answers: it is not bounded."""
    memory_bytes: int = 2 * 1024**3
    """Limit of the data of a closed box's process."""
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    """Folders of `owner` that the box may change."""

    @property
    def owner(self) -> tuple[int, int]:
        """User and group of files that the box writes."""
        if self.is_open or os.geteuid() != 0:
            return os.geteuid(), os.getegid()
        return BOX_USER, BOX_USER

    def command(self, argv: list[str], *, death_signal: int) -> list[str]:
        """Wraps a command so that it runs in the box and ends with its parent."""
        python = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
        return [*python, json.dumps(self._asdict()), str(int(death_signal)), *argv]


OPEN_BOX = Box(is_open=True, has_network=True, has_children=True)


@functools.cache
def box_refusal(box: Box, *program: str) -> str:
    """Returns why this machine allows no such box, empty if it does; takes a tenth of a second.

    A program that ends at once is tried in it, by default Python.
    """
    import subprocess  # not above: a box starts without it

    argv = list(program or (sys.executable, "-I", "-S", "-c", "pass"))
    argv = box.command(argv, death_signal=signal.SIGKILL)
    outcome = subprocess.run(
        argv, capture_output=True, text=True, timeout=PROBE_SECONDS, start_new_session=True
    )
    lines = outcome.stderr.strip().splitlines() or [f"exit code {outcome.returncode}"]
    return lines[-1] if outcome.returncode else ""


@functools.cache
def python_paths() -> tuple[str, ...]:
    """Returns the paths of Python and of all packages and modules that this process can import.

    Of a folder outside an installation, such as a checkout, only importable entries are included:
    its other files may be anything.
    """
    installed = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    whole = [path for path in (*installed, *given) if path]
    for folder in dict.fromkeys([*sys.path, os.getcwd()]):
        if folder.endswith(("site-packages", "dist-packages")):
            whole.append(folder)
        elif os.path.isdir(folder) and not lies_below(folder, whole):
            whole += _importable(Path(folder))
    return tuple(os.path.abspath(path) for path in whole if os.path.exists(path))


def _importable(folder: Path) -> list[str]:
    return [
        str(path)
        for path in sorted(folder.iterdir())
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    ]


def lies_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


class NoBox(Exception):
    """Raised where a part of the box cannot be made."""


def check(result: int, what: str) -> None:
    if result != 0:
        raise NoBox(f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    texts = (source.encode(), target.encode(), kind.encode())
    check(libc.mount(*texts, ctypes.c_ulong(flags), data.encode()), f"mount {source} {target}")


def enter_pid_namespace(inner: tuple[int, int], *, may_be_root: bool = True) -> bool:
    """Lets children be in a new one; returns true if root did it without a user namespace.

    In a user namespace this user and group are `inner`.
    """
    uid, gid = os.geteuid(), os.getegid()
    if may_be_root and uid == 0 and libc.unshare(CLONE_NEWPID) == 0:
        return True
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWPID), "unshare")
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{inner[0]} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{inner[1]} {gid} 1")
    except OSError as error:
        raise NoBox(f"user namespace: {error.strerror}") from error
    return False


def _make_root(box: Box) -> None:
    """Makes a root with only the files that the box may see, and enters it."""
    mount("tmpfs", _NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, f"size={SCRATCH_BYTES},mode=755")
    for name in ("dev", "proc", "tmp", "dev/shm"):
        os.mkdir(f"{_NEW_ROOT}/{name}")
    for name in ("tmp", "dev/shm"):
        os.chmod(f"{_NEW_ROOT}/{name}", 0o1777)
    for device in _DEVICES:
        _bind(f"/dev/{device}")
    shown: list[str] = []
    for path in sorted(box.writable):
        _bind(path)
    for path in sorted((*SYSTEM_PATHS, *box.readable)):
        if os.path.lexists(path) and not lies_below(path, shown):
            _show(path)
            shown.append(path)
    mount("proc", f"{_NEW_ROOT}/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(_NEW_ROOT)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def _show(path: str) -> None:
    """Makes a path readable, with all that is mounted below it; a link stays a link."""
    target = _NEW_ROOT + path
    if os.path.islink(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(path), target)
        return
    _bind(path)
    attributes = struct.pack("QQQQ", MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
    changed = libc.syscall(
        *(MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE),
        *(attributes, ctypes.c_size_t(len(attributes))),
    )
    check(changed, f"mount_setattr {path}")


def _bind(path: str) -> None:
    target = _NEW_ROOT + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    mount(path, target, flags=MS_BIND | MS_REC)


def system_call_filter(box: Box, *further: str) -> list[_Instruction]:
    """Returns the filter of system calls of a closed box, which refuses further ones by name."""
    if os.uname().machine not in _SYSTEM_CALLS:
        raise NoBox(f"there is no filter of system calls for {os.uname().machine}")
    architecture, numbers = _SYSTEM_CALLS[os.uname().machine]
    numbers = _EVERYWHERE | numbers
    refused = [
        *_KERNEL,
        *further,
        *(() if box.has_children else (*UNCOUNTED_CALLS, "fork", "vfork")),
    ]
    # With `clone3`, whose flags a filter cannot read, the library falls back on `clone`.
    code = [(_BPF_LOAD, 0, 0, _ARCHITECTURE), (_BPF_JEQ, 1, 0, architecture), _fail(errno.EPERM)]
    code += [(_BPF_LOAD, 0, 0, _NUMBER), (_BPF_JGE, 0, 1, 0x40000000), _fail(errno.EPERM)]
    for name in refused:
        if name in numbers:
            code += [(_BPF_JEQ, 0, 1, numbers[name]), _fail(errno.EPERM)]
    code += [(_BPF_JEQ, 0, 1, numbers["clone3"]), _fail(errno.ENOSYS)]
    code += _block(numbers["clone"], _FIRST_ARGUMENT, _clone_rules(box))
    if not box.has_children:
        code += _block(numbers["mmap"], _MMAP_FLAGS, _mmap_rules())
    return [*code, (_BPF_RETURN, 0, 0, _ALLOW)]


def _fail(number: int) -> _Instruction:
    return (_BPF_RETURN, 0, 0, _ERRNO | number)


def _block(number: int, argument: int, rules: list[_Instruction]) -> list[_Instruction]:
    """Returns rules about an argument of a call; the call is allowed if no rule applies."""
    body = [(_BPF_LOAD, 0, 0, argument), *rules, (_BPF_RETURN, 0, 0, _ALLOW)]
    return [(_BPF_JEQ, 0, len(body), number), *body]


def _clone_rules(box: Box) -> list[_Instruction]:
    rules = [(_BPF_JSET, 0, 1, _CLONE_NEW_ANY), _fail(errno.EPERM)]
    return rules if box.has_children else [(_BPF_JSET, 1, 0, _CLONE_THREAD), _fail(errno.EPERM)]


def _mmap_rules() -> list[_Instruction]:
    return [
        *((_BPF_JSET, 0, 1, _MAP_GROWSDOWN), _fail(errno.ENOMEM)),
        *((_BPF_AND, 0, 0, _MAP_SHARED_ANONYMOUS), (_BPF_JEQ, 0, 1, _MAP_SHARED_ANONYMOUS)),
        _fail(errno.ENOMEM),
    ]


def install_filter(instructions: list[_Instruction]) -> None:
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(buffer))
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    check(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def _limit(box: Box) -> None:
    total = box.memory_bytes + LIBRARY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (total, total))
    # The program sets a limit for its data after its imports.
    resource.setrlimit(resource.RLIMIT_STACK, (8 * 1024**2, MAX_STACK_BYTES))
    resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))


def _execute(box: Box, is_root: bool, output: int, command: list[str], cwd: str) -> NoReturn:
    """Becomes the command; from here on everything is under its limits."""
    os.dup2(output, 2)
    if not box.has_channel:
        os.dup2(output, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not box.is_open:
        os.chdir(cwd if os.path.isdir(cwd) else "/tmp")
        _limit(box)
        if is_root:
            os.setgroups([])
            os.setresgid(BOX_USER, BOX_USER, BOX_USER)
            os.setresuid(BOX_USER, BOX_USER, BOX_USER)
        install_filter(system_call_filter(box))
    os.execv(command[0], command)


def _be_init(box: Box, is_root: bool, output: int, number: int, command: list[str]) -> NoReturn:
    """Is the first process of the namespace: ends with the command, and all others with it.

    In an open box the command is the process of this number, as it is outside.
    """
    os.setsid()
    cwd = os.getcwd()
    flags = CLONE_NEWNS | (0 if box.is_open else CLONE_NEWIPC)
    check(libc.unshare(flags | (0 if box.has_network else CLONE_NEWNET)), "unshare")
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    if box.is_open:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        with contextlib.suppress(OSError):  # files that are named by the process stay distinct
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
    else:
        _make_root(box)
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent death signal")
    exit_if_unread(output)
    worker = os.fork()
    if worker == 0:
        or_exit(lambda: _execute(box, is_root, output, command, cwd))
    _relay_signals(worker)
    leave_channel()
    while True:
        pid, status = os.wait()
        if pid == worker:
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def exit_if_unread(output: int) -> None:
    """Ends if the process that reads the output is gone: it died before its death was noticed."""
    unread = select.poll()
    unread.register(output, 0)
    if unread.poll(0):
        os._exit(NO_BOX_EXIT_CODE)


def or_exit(act: Callable[[], NoReturn]) -> NoReturn:
    try:
        act()
    except (NoBox, OSError) as error:
        os.write(2, f"there is no box: {error}\n".encode())
    finally:
        os._exit(NO_BOX_EXIT_CODE)


def _relay_signals(pid: int) -> None:
    for number in _RELAYED:
        signal.signal(number, lambda received, _: send_signal(pid, received))


def send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _pass_on(output: int) -> None:
    """Passes output on until its end, at most so much in a time."""
    ends, left = 0.0, 0
    for text in iter(lambda: os.read(output, 65_536), b""):
        if time.monotonic() > ends:
            ends, left = time.monotonic() + OUTPUT_SECONDS, MAX_OUTPUT_BYTES
        _write(text[: max(left, 0)])
        if 0 <= left < len(text):
            _write(b"\nmore output than 256 KiB a minute is left out\n")
        left = max(left - len(text), -1)


def _write(text: bytes) -> None:
    with contextlib.suppress(OSError):  # its reader may be gone
        while text:
            text = text[os.write(2, text) :]


def main(spec: str, death_signal: int, command: list[str]) -> None:
    """Makes the box, runs the command in it and ends as the command did."""
    parent, number, box = os.getppid(), os.getpid(), Box(**json.loads(spec))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel ends it first
    outgoing, output = os.pipe()
    # An inner user 0 would keep its capabilities in the namespace when the command is executed.
    is_root = enter_pid_namespace(box.owner)
    # A change of credentials clears the death signal, so it is set last.
    check(libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0), "parent death signal")
    if os.getppid() != parent:
        sys.exit("the parent process died before the command started")
    init = os.fork()
    if init == 0:
        os.close(outgoing)
        or_exit(lambda: _be_init(box, is_root, output, number, command))
    os.close(output)
    _relay_signals(init)
    leave_channel()
    _pass_on(outgoing)
    _end_as(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]))


def _end_as(code: int) -> NoReturn:
    """Ends with the exit code or by the signal of the command."""
    number = -code if code < 0 else code - 128
    if number > 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number in _RELAYED:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(code)


def leave_channel() -> None:
    """Leaves standard input and output to the command: the other end sees when it closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    except NoBox as error:
        sys.stderr.write(f"there is no box: {error}\n")
        sys.exit(NO_BOX_EXIT_CODE)
