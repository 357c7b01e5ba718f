"""Executes a command under another identity, tied to the life of the process that started it.

    python -I -S exec_as.py <identity> <signal at parent's death> <command> [arguments...]

Identities: `self` keeps the current one; `user:<uid>:<gid>` becomes that user but keeps the right
to traverse directories that only root may enter; `namespace:<uid>:<gid>` enters a user namespace in
which root has that uid, so that its files stay root's. Postgres refuses to run as uid 0. Code that
must be isolated runs in a box (`trinity.runtime.process.box`).
"""

import ctypes
import os
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_NEWUSER = 0x10000000

_libc = ctypes.CDLL(None, use_errno=True)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapabilityWord(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def _drop_capabilities_except(capabilities: int) -> None:
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    words = (_CapabilityWord * 2)()
    words[0] = _CapabilityWord(capabilities, capabilities, capabilities)
    _check(_libc.capset(ctypes.byref(header), words), "capset")


def _become_user(uid: int, gid: int) -> None:
    """Changes to the user; drops all capabilities but CAP_DAC_READ_SEARCH, kept if permitted.

    Without NO_SETUID_FIXUP, access(2), with which Postgres finds itself, would ignore it.
    """
    os.setgroups([])
    may_keep = _libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if not may_keep:
        return
    try:
        _drop_capabilities_except(1 << _CAP_DAC_READ_SEARCH)
        raised = _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0)
        _check(raised, "ambient capability")
    except OSError:
        _drop_capabilities_except(0)


def _enter_namespace(uid: int, gid: int) -> None:
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")


def main(identity: str, death_signal: str, command: list[str]) -> None:
    parent = os.getppid()
    kind, *numbers = identity.split(":")
    if kind == "user":
        _become_user(int(numbers[0]), int(numbers[1]))
    elif kind == "namespace":
        _enter_namespace(int(numbers[0]), int(numbers[1]))
    # A change of credentials clears the death signal, so it is set last.
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0), "parent death signal")
    if os.getppid() != parent:
        sys.exit("the parent process died before the command started")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
