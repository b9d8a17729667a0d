"""The processes of one worker: `python -m vipray.verifiers.worker_process SOCKET LIFELINE` (two descriptors).

    pool ──── socket: answers, scores ────► worker ──► whatever a verifier starts
      └────── lifeline: a pipe ───────────► supervisor, the parent of the worker and of its orphans

The supervisor runs nothing of a verifier, so it cannot hang. When the worker ends, or when the lifeline closes (which
it does however the pool's process ends, by SIGKILL too), it ends everything below it, processes that left the group or
the session included, and then itself.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from vipray.verifiers.limits import adopt_orphans, be_first_to_go, die_with_parent

EXIT_BY_SIGNAL = 128  # plus the signal's number, as shells have it


def main(argv: Sequence[str]) -> int:
    """Run worker and supervisor; return how the worker ended: its status, or `EXIT_BY_SIGNAL` plus a signal."""
    socket_fd, lifeline_fd = (int(argument) for argument in argv)
    adopt_orphans()
    supervisor = os.getpid()
    children_end, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler there must be for the descriptor to be written to
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    worker = os.fork()
    if worker == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (lifeline_fd, children_end, notify):
            os.close(descriptor)
        _work(socket_fd, supervisor)
    os.close(socket_fd)
    status = _supervise(worker, lifeline_fd, children_end)
    signal.set_wakeup_fd(-1)
    _end_descendants()
    return status


def _work(socket_fd: int, supervisor: int) -> None:
    die_with_parent(supervisor)
    be_first_to_go()
    os.dup2(2, 1)  # what a verifier prints must not get between the results of a command
    from vipray.verifiers.worker_loop import serve

    os._exit(serve(socket_fd))


def _supervise(worker: int, lifeline_fd: int, children_end: int) -> int:
    """Wait until the worker ends, or the lifeline closes."""
    with selectors.DefaultSelector() as selector:
        selector.register(lifeline_fd, selectors.EVENT_READ)
        selector.register(children_end, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if lifeline_fd in ready:
                return 0
            with suppress(BlockingIOError):
                os.read(children_end, 4096)
            while (ended := _reap(os.WNOHANG)) is not None:
                if ended[0] == worker:
                    code = os.waitstatus_to_exitcode(ended[1])
                    return EXIT_BY_SIGNAL - code if code < 0 else code


def _reap(options: int = 0) -> tuple[int, int] | None:
    """Process id and status of a child that has ended; None where there is none."""
    try:
        pid, status = os.waitpid(-1, options)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _end_descendants() -> None:
    """Kill all descendants. Each round ends one at least, and their orphans become children of this process."""
    import psutil  # not before the worker is forked: it would carry it along

    this = psutil.Process()
    while True:
        for child in this.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        if _reap() is None:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
