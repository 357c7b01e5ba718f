"""Executes a command under another identity, tied to the life of the process that started it.

    python -I -S exec_as.py <identity> <signal at parent's death> <command> [arguments...]

Identities: `self` changes nothing; `user:<uid>:<gid>` becomes that user but keeps the right to
traverse directories that only root may enter; `namespace:<uid>:<gid>` enters a user namespace in
which root has that uid, so that its files stay root's. Postgres refuses to run as uid 0. `offline`
stays the same user without a network; where the kernel refuses that, a line on standard error says
so and the command runs with one.
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
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_CAPBSET_DROP = 24
_MAX_CAPABILITY = 63

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
    """Changes to the user; keeps CAP_DAC_OVERRIDE if the system permits, and nothing else.

    Without NO_SETUID_FIXUP, access(2), with which Postgres finds itself, would ignore it.
    """
    os.setgroups([])
    may_keep = _libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if not may_keep:
        return
    try:
        _drop_capabilities_except(1 << _CAP_DAC_OVERRIDE)
        raised = _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)
        _check(raised, "ambient capability")
    except OSError:
        _drop_capabilities_except(0)


def _enter_namespace(uid: int, gid: int) -> None:
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER), "unshare")
    _map_user(uid, gid, outer_uid, outer_gid)


def _map_user(uid: int, gid: int, outer_uid: int, outer_gid: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")


def _leave_network() -> None:
    """Enters a network namespace in which there is no interface but an idle loopback.

    Root keeps the right to read its plug-in files, and loses those with which it could return.
    Others need a user namespace, in which they stay the same user.
    """
    if os.geteuid() == 0 and _libc.unshare(_CLONE_NEWNET) == 0:
        for capability in range(_MAX_CAPABILITY + 1):
            if capability != _CAP_DAC_OVERRIDE:
                _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        return
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        sys.stderr.write(f"users' functions keep the network: the kernel refuses: {reason}\n")
        return
    try:
        _map_user(uid, gid, uid, gid)
    except OSError:
        return  # the uid is shown as an unknown one, and its files are still its own


def main(identity: str, death_signal: str, command: list[str]) -> None:
    parent = os.getppid()
    kind, *numbers = identity.split(":")
    if kind == "user":
        _become_user(int(numbers[0]), int(numbers[1]))
    elif kind == "namespace":
        _enter_namespace(int(numbers[0]), int(numbers[1]))
    elif kind == "offline":
        _leave_network()
    # A change of credentials clears the death signal, so it is set last.
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0), "parent death signal")
    if os.getppid() != parent:
        sys.exit("the parent process died before the command started")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
