"""The first process of a container: passes signals on to the daemon, and reaps processes whose parent has ended.

The kernel gives orphans to PID 1 of their PID namespace. A daemon cannot reap them as PID 1 itself: it would also take
the exit status of its libraries' children. So PID 1 is a process for reaping only, and the daemon is its child. It
sleeps until a signal arrives, and shares nearly all its memory with the daemon.
"""

import os
import signal

__all__ = ["leave_init"]

_NOT_FORWARDED = {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP}


def leave_init(pid: int | None = None) -> None:
    """If this process is PID 1, returns in a child of it; PID 1 ends when the child does, with its exit code.

    Call it before any thread is started. `pid` is this process's.
    """
    if (os.getpid() if pid is None else pid) != 1:
        return
    everything = signal.valid_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    daemon = os.fork()
    if not daemon:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while (code := _reap(daemon)) is None:
        number = signal.sigwait(everything)
        if number not in _NOT_FORWARDED:
            os.kill(daemon, number)
    os._exit(code)


def _reap(daemon: int) -> int | None:
    """Reaps every ended child; the exit code of the daemon if it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if not pid:
            return code
        if pid == daemon:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else 128 - ended
