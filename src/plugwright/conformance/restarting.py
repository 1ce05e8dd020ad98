"""Restarts of a program after its end, as by a DaemonSet."""

import asyncio
import re
from collections.abc import Collection

from plugwright.conformance.program import Program
from plugwright.conformance.session import RegisteredPlugin, Session
from plugwright.errors import PluginNotRunning

__all__ = ["crashed", "restart_kubelet", "start_after_end", "until_back"]

# Programs name sockets by the second of their start, and no container starts twice in one second.
_PAUSE = 1.1
# Messages of the runtimes of Go and Python. A Go program that calls panic() with its own text ends on purpose.
_CRASHES = re.compile(
    r"panic: (?:runtime error|close of|send on closed|assignment to entry|interface conversion|sync:|reflect)"
    r"|fatal error:|Traceback \(most recent call last\)|SIGSEGV|core dumped"
)


async def start_after_end(session: Session) -> Program:
    """Restarts the program, in a later second than before."""
    await asyncio.sleep(_PAUSE)
    return await session.start_program()


def crashed(program: Program) -> bool:
    """Whether the program ended by a signal or a runtime error, and not by its own decision."""
    code = program.returncode
    return code is not None and (code < 0 or _CRASHES.search(program.output) is not None)


async def restart_kubelet(session: Session) -> list[RegisteredPlugin]:
    """Restarts the kubelet and waits until every resource is listed again."""
    resources, mark = {plugin.resource for plugin in session.plugins()}, session.mark
    await session.kubelet.restart()
    await until_back(session, resources, mark)
    return session.plugins()


async def until_back(session: Session, resources: Collection[str], mark: int, limit: float = 0.0) -> None:
    """Waits for a registration after `mark`. Restarts a program that ends with an error once, as its DaemonSet does.

    Raises PluginNotRunning if there is none.
    """
    try:
        await session.until_registered(resources, mark=mark, limit=limit)
    except PluginNotRunning:
        if not session.programs or not session.program.returncode or crashed(session.program):
            raise
        session.program.forgive()
        await session.program.end()
        mark = session.mark
        await start_after_end(session)
        await session.until_registered(resources, mark=mark, limit=session.limits.start)
