"""Makes a sandbox of namespaces and answers requests in it; also a program.

    python -I -S -c "...; sandbox_root.main(<the sandbox as JSON>)"

Three processes, as in a box: this one, which counts the memory and ends with its parent; the first
one of the new pid namespace, which answers requests; the commands. The root has this machine's
programs, read-only, or is an overlay over a folder; written files lie in memory. Inside, the user
is root, but of a user namespace: outside, the number has neither files nor rights.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from trinity.runtime.process import box, sandbox_server

WORK = "/sandbox"
"""The folder of commands."""
FIRST_USER, NUM_USERS = 0x6A00_0000, 0x1_0000
"""Users of sandboxes that root starts, as numbered outside: higher than those in use."""
_LAYERS = "/sys"
_ROOT = f"{_LAYERS}/root"
_STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}
_DEVICES = ("null", "zero", "full", "random", "urandom")
_KEPT_CAPABILITIES = 0b1111_1011
"""Of the user namespace: chown, both that override modes, fowner, fsetid, kill, setgid, setuid."""
_CLONE_NEWUTS = 0x4000000
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _AT_EMPTY_PATH = 1, 4, 0x1000
_MOUNT_ATTR_IDMAP = 0x100000
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _NUM_CAPABILITIES = 4, 24, 64
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_CGROUP = "trinity-sandbox-"
_STALE_SECONDS = 60.0
_REMOVAL_TRIES, _REMOVAL_SECONDS = 100, 0.05


def main(spec: str) -> None:
    """Makes the sandbox and ends when it does, or when the process that started this one ends."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel ends it first
    box.or_exit(lambda: _stand_outside(json.loads(spec)))


def _stand_outside(spec: dict[str, Any]) -> NoReturn:
    parent = os.getppid()
    users = _user_namespace() if os.geteuid() == 0 else None
    if users is None:
        box.enter_pid_namespace((0, 0), may_be_root=False)
    else:
        box.check(box.libc.unshare(box.CLONE_NEWPID), "unshare")
    # A change of credentials clears the death signal, so it is set last.
    _set_death_signal(signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent process died before the sandbox started")
    counted, count = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(count)
        box.or_exit(lambda: _be_init(spec, users, counted))
    signal.signal(signal.SIGTERM, lambda *_: box.send_signal(init, signal.SIGKILL))
    total = spec["memory_bytes"] + spec["disk_bytes"]
    cgroup = join_cgroup(init, total, Path("/proc/self/cgroup").read_text())
    os.write(count, b"1" if cgroup else b"0")
    box.leave_channel()
    while os.waitpid(-1, 0)[0] != init:
        pass
    for _ in range(_REMOVAL_TRIES):
        if cgroup is None or _removes(cgroup):
            break
        time.sleep(_REMOVAL_SECONDS)
    with contextlib.suppress(OSError):  # the process that made it may have been killed
        os.unlink(spec["path"])
        os.rmdir(os.path.dirname(spec["path"]))
    os._exit(0)


def _removes(cgroup: Path) -> bool:
    """Returns False while the kernel still counts a process that has ended."""
    try:
        cgroup.rmdir()
    except OSError:
        return False
    return True


def _set_death_signal(number: int) -> None:
    box.check(box.libc.prctl(box.PR_SET_PDEATHSIG, number, 0, 0, 0), "parent death signal")


def _user_namespace() -> int | None:
    """Returns a new user namespace, in which the users from `FIRST_USER` on begin with root.

    None if this user may not, whose own number is then that of root inside. The machine's root
    must not be: the kernel would not count its processes.
    """
    made, make = os.pipe()
    child = os.fork()
    if child == 0:
        box.libc.unshare(box.CLONE_NEWUSER)
        _set_death_signal(signal.SIGKILL)
        os.write(make, b"x")
        signal.pause()
    try:
        os.read(made, 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {FIRST_USER} {NUM_USERS}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    except PermissionError as error:
        if Path("/proc/self/uid_map").read_text().split()[:2] == ["0", "0"]:
            raise box.NoBox(f"root may not map users: {error.strerror}") from error
        return None
    finally:
        os.kill(child, signal.SIGKILL)


def join_cgroup(
    pid: int, num_bytes: int, memberships: str, mounted: Path = Path("/sys/fs/cgroup")
) -> Path | None:
    """Puts a process into a new cgroup below this one's that limits memory; None if it may not.

    `memberships` is this process's `/proc/self/cgroup`. Empty cgroups that killed sandboxes have
    left are removed.
    """
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            parent, limits = mounted, ("memory.max", "memory.swap.max")
        elif "memory" in controllers.split(","):
            parent = mounted / "memory"
            limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        else:
            continue
        folder = parent / path.strip("/") / f"{_CGROUP}{os.getpid()}"
        if _fill_cgroup(folder, pid, num_bytes, limits):
            return folder
    return None


def _fill_cgroup(folder: Path, pid: int, num_bytes: int, limits: tuple[str, str]) -> bool:
    try:
        for other in folder.parent.glob(f"{_CGROUP}*"):
            if time.time() - other.stat().st_mtime > _STALE_SECONDS:
                _removes(other)
        folder.mkdir()
    except OSError:
        return False
    try:
        (folder / limits[0]).write_text(str(num_bytes))
        with contextlib.suppress(OSError):  # where swap is not counted there is no such file
            (folder / limits[1]).write_text("0" if "swap" in limits[1] else str(num_bytes))
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError:
        folder.rmdir()
        return False
    return True


def _be_init(spec: dict[str, Any], users: int | None, counted: int) -> NoReturn:
    """Is the first process of the namespace: builds the root, gives up its rights, and serves."""
    os.setsid()
    os.umask(0o022)
    new = box.CLONE_NEWNS | box.CLONE_NEWIPC | box.CLONE_NEWNET | _CLONE_NEWUTS
    box.check(box.libc.unshare(new), "unshare")
    box.mount("none", "/", flags=box.MS_REC | box.MS_SLAVE)
    socket.sethostname("sandbox")
    _raise_loopback()
    if spec["port"]:
        sandbox_server.offer_port(spec["port"], spec["path"])
    _make_root(spec, users)
    is_counted = os.read(counted, 1)  # the other process meanwhile made the cgroup
    _give_up_rights(spec, users, is_counted=is_counted == b"1")
    _set_death_signal(signal.SIGKILL)
    box.exit_if_unread(counted)
    sandbox_server.serve_requests()
    os._exit(0)


def _raise_loopback() -> None:
    with socket.socket() as asking:
        fcntl.ioctl(asking, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _make_root(spec: dict[str, Any], users: int | None) -> None:
    """Makes the root and enters it.

    Sources are opened before and attached after it is entered, so that links in a folder of others
    lead nowhere else.
    """
    options = f"size={spec['disk_bytes']},mode=755"
    box.mount("tmpfs", _LAYERS, "tmpfs", box.MS_NOSUID | box.MS_NODEV, options)
    owner = FIRST_USER if users is not None else 0
    for name in ("root", "lower", "upper", "scratch", "proc"):
        os.mkdir(f"{_LAYERS}/{name}")
        os.chown(f"{_LAYERS}/{name}", owner, owner)
    flags = box.MS_NOSUID | box.MS_NODEV
    box.mount("proc", f"{_LAYERS}/proc", "proc", box.MS_RDONLY | flags | box.MS_NOEXEC)
    sources = {f"/dev/{name}": _opened(f"/dev/{name}", 0) for name in _DEVICES}
    sources["/proc"] = _opened(f"{_LAYERS}/proc", 0)
    links: dict[str, str] = {f"/dev/{name}": f"/proc/self/fd/{n}" for name, n in _STREAMS.items()}
    links["/dev/fd"] = "/proc/self/fd"
    shown: list[str] = []
    for path in sorted((*(() if spec["root"] else box.SYSTEM_PATHS), *spec["readable"])):
        if os.path.lexists(path) and not box.lies_below(path, shown):
            shown.append(path)
            if os.path.islink(path):
                links[path] = os.readlink(path)
            else:
                sources[path] = _opened(path, box.MS_RDONLY | flags)
    _enter_root(spec["root"], users)
    for path, source in sources.items():
        _attach(source, path)
    for path, target in links.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.lexists(path):
            os.symlink(target, path)
    for path in ("/tmp", "/dev/shm", WORK):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o1777 if path != WORK else 0o755)
    os.chown(WORK, owner, owner)
    os.chdir(WORK)


def _enter_root(lower: str, users: int | None) -> None:
    flags = box.MS_NOSUID | box.MS_NODEV
    if lower:
        os.chdir(lower)
        if users is not None:
            _map_users(lower, users)
        options = f"lowerdir=.,upperdir={_LAYERS}/upper,workdir={_LAYERS}/scratch"
        box.mount("overlay", _ROOT, "overlay", flags, options + ",userxattr" * (users is None))
    else:
        box.mount(_ROOT, _ROOT, flags=box.MS_BIND)
    os.chdir(_ROOT)
    box.check(box.libc.pivot_root(b".", b"."), "pivot_root")
    box.check(box.libc.umount2(b".", box.MNT_DETACH), "umount")
    os.chdir("/")


def _map_users(lower: str, users: int) -> None:
    """Makes the users of a folder those of the namespace, if its file system can; goes there."""
    with contextlib.suppress(box.NoBox):  # then their names are unknown inside
        source = _opened(lower, _MOUNT_ATTR_IDMAP, users=users)
        _attach(source, f"{_LAYERS}/lower")
        os.chdir(f"{_LAYERS}/lower")


def _opened(path: str, attributes: int, *, users: int = 0) -> int:
    """Returns a copy of the mount at a path, attached nowhere, with these attributes."""
    below = 0 if users else box.AT_RECURSIVE
    how = _OPEN_TREE_CLONE | os.O_CLOEXEC | below
    source: int = box.libc.syscall(_OPEN_TREE, box.AT_FDCWD, path.encode(), how)
    box.check(min(source, 0), f"open_tree {path}")
    if attributes:
        wanted = struct.pack("QQQQ", attributes, 0, 0, users)
        changed = box.libc.syscall(
            *(box.MOUNT_SETATTR, source, b"", _AT_EMPTY_PATH | below),
            *(wanted, ctypes.c_size_t(len(wanted))),
        )
        box.check(changed, f"mount_setattr {path}")
    return source


def _attach(source: int, path: str) -> None:
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.lexists(path):
            Path(path).touch()
    moved = box.libc.syscall(
        *(_MOVE_MOUNT, source, b"", box.AT_FDCWD, path.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
    )
    box.check(moved, f"move_mount {path}")
    os.close(source)


def _give_up_rights(spec: dict[str, Any], users: int | None, *, is_counted: bool) -> None:
    """Becomes root of the user namespace alone, under the limits of the sandbox."""
    if users is not None:
        box.check(box.libc.setns(users, box.CLONE_NEWUSER), "setns")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    for number in range(_NUM_CAPABILITIES):
        if not _KEPT_CAPABILITIES >> number & 1:
            box.libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    kept = struct.pack("IIIIII", _KEPT_CAPABILITIES, _KEPT_CAPABILITIES, 0, 0, 0, 0)
    box.check(box.libc.capset(header, kept), "capset")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (spec["max_processes"],) * 2)
    if not is_counted:
        resource.setrlimit(resource.RLIMIT_DATA, (spec["memory_bytes"],) * 2)
        total = spec["memory_bytes"] + box.LIBRARY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (total, total))
    uncounted = ("add_key", "keyctl") if is_counted else box.UNCOUNTED_CALLS
    box.install_filter(box.system_call_filter(box.Box(has_children=True), *uncounted))
    box.check(box.libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "not dumpable")
