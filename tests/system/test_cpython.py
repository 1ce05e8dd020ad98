"""What relies on the inside of CPython works on the Python that runs this: run it on every new version."""

import asyncio
import hashlib
import sys
import threading
from functools import partial

import pytest
from tests.cli.processes import ended, python

from plugwright.system import cpython

WITHOUT_SSL = """
import sys
from plugwright.system.cpython import allow_ssl, leave_out_ssl, sha256

leave_out_ssl()
import asyncio

async def connect(path):
    answer = asyncio.get_running_loop().create_future()
    async with await asyncio.start_unix_server(lambda reader, writer: answer.set_result(writer), path):
        await asyncio.open_unix_connection(path)
        (await answer).close()

asyncio.run(connect(sys.argv[1]))
sha256(b"")
print(sorted({"_ssl", "_hashlib"} & set(sys.modules)))
allow_ssl()
from http.client import HTTPSConnection
import ssl
print(ssl.create_default_context().check_hostname)
"""
WITHOUT_TYPING_EXTENSIONS = """
import sys
from plugwright.system.cpython import leave_out_typing_extensions

leave_out_typing_extensions()
print("typing_extensions" in sys.modules)
import msgspec

class Level(msgspec.Struct, frozen=True):
    name: str
    parts: "tuple[int, ...]" = ()

print(msgspec.json.decode(b'{"name": "a", "parts": [1, 2]}', type=Level))
from typing_extensions import TypeIs
"""
LAST_WORDS = """
import logging
from plugwright.sdk.logs import LogWriter, standard_error

class Plugin:
    def __init__(self):
        self.log = logging.getLogger("plugin")
        self.log.addHandler(LogWriter(standard_error()))

    def __del__(self):  # while the interpreter exits, when no thread can begin
        self.log.warning("closed")

plugin = Plugin()
"""


async def test_asyncio_serves_unix_sockets_without_ssl_until_it_is_allowed(tmp_path: object) -> None:
    done = await ended(python("-c", WITHOUT_SSL, f"{tmp_path}/socket"))
    assert (done.code, done.err, done.out.split("\n")[:2]) == (0, "", ["[]", "True"])


async def test_msgspec_works_without_typing_extensions_which_can_be_loaded_later() -> None:
    done = await ended(python("-c", WITHOUT_TYPING_EXTENSIONS))
    assert (done.code, done.err, done.out) == (0, "", "False\nLevel(name='a', parts=(1, 2))\n")


def test_a_digest_is_that_of_hashlib() -> None:
    for content in (b"", b"plugwright", b"\xff" * 100_000):
        assert cpython.sha256(content) == hashlib.sha256(content).hexdigest()


def test_a_thread_is_started_and_has_its_name() -> None:
    names, began, let_go = list[str](), threading.Event(), threading.Event()

    def work() -> None:
        names.append(threading.current_thread().name)
        began.set()
        let_go.wait(60)

    thread = cpython.start_thread("tape", work)
    assert began.wait(60)
    assert (names, thread.daemon, thread.is_alive()) == (["tape"], True, True)
    let_go.set()
    thread.join(60)
    assert not thread.is_alive()


async def test_a_first_line_while_the_interpreter_exits_does_not_keep_it_from_ending() -> None:
    done = await ended(python("-c", LAST_WORDS))
    assert done.code == 0


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on asyncio has eager tasks")
async def test_a_task_runs_until_it_has_to_wait_and_then_like_every_task() -> None:
    loop, ready, seen = asyncio.get_running_loop(), asyncio.Event(), list[object]()

    async def work() -> str:
        seen.append(asyncio.current_task())
        await ready.wait()
        seen.append(asyncio.current_task())
        return "done"

    outer = asyncio.current_task()
    task = cpython.start_before_3_12(asyncio, loop, partial(asyncio.Task, work(), loop=loop))
    assert seen == [task]
    assert asyncio.current_task() is outer
    assert "call_soon" not in vars(loop)
    ready.set()
    assert await task == "done"
    assert seen == [task, task]
