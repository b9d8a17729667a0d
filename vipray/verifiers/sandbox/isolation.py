"""Shut the calling process in, with Linux namespaces: what is left is libraries, a `/tmp`, and three devices.

New namespaces for mounts, processes, network, IPC and host name; a root of its own, read-only but for a small `/tmp`;
no capabilities, no way to get any; limits on memory, processor time, processes and files. As root, the process becomes
a user of its own, because limits on processes count by user; as any other user, it enters a user namespace. System
calls are not filtered: a fault of the kernel is not kept from the code.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from vipray.verifiers.limits import die_with_parent, forbid_privileges

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_NAMESPACES = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture; the C library of older systems has no name for it
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_CAPABILITY_VERSION_3 = 0x20080522
_NOBODY = 65534
_FIRST_USER, _NUM_USERS = (
    20_000,
    40_000,
)  # which of them it is does not matter: no file or process of theirs is in reach
_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_NUM_FILES = 64  # open at once
_NUM_INODES = 1000

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Limits:
    """What the processes inside may take: seconds of processor time and bytes of memory each, bytes of files."""

    cpu_s: int
    memory_bytes: int
    processes: int
    file_bytes: int


def enter(limits: Limits) -> None:
    """Shut in what follows: returns in a new process, the child of the first process of the namespace.

    The calling process and the first of the namespace stay outside of the code that is run: they wait, and end the way
    the code ended.

    Raises:
        OSError: the machine does not permit it; the message says what was asked for.
    """
    user = _FIRST_USER + os.getpid() % _NUM_USERS
    is_root = os.geteuid() == 0 and _unshare(_NAMESPACES)
    if not is_root:
        _enter_user_namespace()
    _go_on_in_child()
    _make_root(limits)
    _drop_privileges(user if is_root else None)
    die_with_parent()  # only now: a change of user would undo it
    _set_limits(limits)
    _go_on_in_child()


def _visible_paths() -> list[str]:
    """The libraries of the system and of the interpreter, and devices."""
    paths = [path for path in (*_LIBRARIES, *_DEVICES) if os.path.lexists(path)]
    python = os.path.join(os.path.realpath(sys.base_prefix), "lib")
    if not any(Path(python).is_relative_to(os.path.realpath(path)) for path in paths):
        paths.append(python)
    return paths


def _unshare(flags: int) -> bool:
    return _libc.unshare(flags) == 0


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    _call(_libc.unshare(_CLONE_NEWUSER | _NAMESPACES), "unshare(user, mount, process and network namespaces)")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_NOBODY} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{_NOBODY} {group} 1")


def _go_on_in_child() -> None:
    """Fork; the parent waits for everything below it, and ends as its child did."""
    child = os.fork()
    if child == 0:
        return
    os.closerange(0, 256)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _make_root(limits: Limits) -> None:
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    sources = {path: os.open(path, os.O_PATH) for path in _visible_paths()}  # one of them may lie below /tmp
    root = "/tmp"  # there on every machine, and out of sight from here on
    _mount("root", root, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size=1m,nr_inodes={_NUM_INODES},mode=755")
    for path, source in sources.items():
        _show(path, source, root + path)
    os.mkdir(root + "/tmp", 0o755)
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.sizeof(attributes)
    numbers = [ctypes.c_long(value) for value in (_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, size)]
    result = _libc.syscall(*numbers[:2], root.encode(), numbers[2], attributes, numbers[3])
    _call(result, "mount_setattr(read-only)")
    options = f"size={limits.file_bytes},nr_inodes={_NUM_INODES},mode=1777"
    _mount("tmp", root + "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    os.chdir(root)
    _call(_libc.pivot_root(b".", b"."), "pivot_root")
    _call(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/tmp")


def _show(path: str, source: int, target: str) -> None:
    """Let a file, folder or symbolic link be seen under the new root."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    else:
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            Path(target).touch()
        _mount(f"/proc/self/fd/{source}", target, None, _MS_BIND | _MS_REC)
    os.close(source)


def _drop_privileges(user: int | None) -> None:
    if user is not None:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    forbid_privileges()


def _set_limits(limits: Limits) -> None:
    for kind, value in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_NPROC, limits.processes + 2),  # the processes that wait are counted
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, _NUM_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits.cpu_s + 1),  # SIGKILL, a second after SIGXCPU
    ):
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (min(value, limits.cpu_s) if kind == resource.RLIMIT_CPU else value, value))


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    result = _libc.mount(*encoded, ctypes.c_ulong(flags), None if options is None else options.encode())
    _call(result, f"mount({target})")


def _call(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
