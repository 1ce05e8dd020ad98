"""Rules of faults: bad messages, bad connections, and a kubelet that is killed in the middle of a call."""

import asyncio
from contextlib import AsyncExitStack, suppress

from plugwright.conformance import hostile_frames
from plugwright.conformance.asking import allocate, check_alive, expect, expect_list, outcome, with_devices, with_option
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.session import RegisteredPlugin
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerRefused, PluginNotRunning, PlugwrightError
from plugwright.protocol import transport
from plugwright.protocol.device_plugin import SERVICE

__all__ = ["RULES"]

_ALLOCATE = f"{SERVICE}/Allocate"
_OPTIONS = f"{SERVICE}/GetDevicePluginOptions"
_LIST = f"{SERVICE}/ListAndWatch"
_MALFORMED = (b"\xff\xff\xff\xff", b"\x0a\x7f", b"\x0a\x02\x0a\x05")
_UNKNOWN_FIELDS = b"\xfa\x3e\x03abc\xf0\x3f\x01"  # field 1007 with a text and field 1022 with a number
_SILENT_CONNECTIONS = 50
_CANCELLED_STREAMS, _READ_STREAMS = 100, 25
_CUT_CALLS = 4
_LARGE = 5 * 1024 * 1024


async def _cut(plugin: RegisteredPlugin, method: str, message: bytes) -> None:
    """Calls that are cancelled before they can be answered, and some whose connection is cut in the meantime."""
    await hostile_frames.send(plugin.socket, hostile_frames.cancelled_calls(method, _CUT_CALLS, message))
    for _ in range(_CUT_CALLS):
        await hostile_frames.send(plugin.socket, hostile_frames.call(method, message))


async def _raw(verifier: Verifier, plugin: RegisteredPlugin, method: str, message: bytes) -> PlugwrightError | None:
    async with transport.connect(plugin.socket) as client:
        try:
            await client.call_encoded(method, message, verifier.limits.call)
        except PlugwrightError as error:
            return error
    return None


class SurvivesMalformed(Rule):
    id, level, facts = "FLT-01", Level.MUST, ()
    title = "A malformed message is refused and does no harm"
    why = "Otherwise any process that can write to the socket could end the plugin, and the node would have no devices."
    fix = "Let the gRPC library decode, and do not exit on its errors."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            for message in _MALFORMED:
                error = await _raw(verifier, plugin, _ALLOCATE, message)
                expect(error is not None, "an error", f"{plugin.resource} answered {message!r} as a request")
        await check_alive(verifier, "a malformed message")


class IgnoresUnknownFields(Rule):
    id, level, facts = "FLT-02", Level.MUST, ()
    title = "Fields of later versions are ignored"
    why = "A newer kubelet may send them; a plugin that rejects them must be upgraded together with every node."
    fix = "Use a protobuf library with its usual rules."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            container = b"\x0a" + _length(plugin.ids[0].encode()) + _UNKNOWN_FIELDS
            message = b"\x0a" + _length(container) + _UNKNOWN_FIELDS
            error = await _raw(verifier, plugin, _ALLOCATE, message)
            expect(error is None, "an answer as without them", str(error))


class RefusesUnknownMethod(Rule):
    id, level, facts = "FLT-03", Level.MUST, ("8.20",)
    title = "A method that does not exist is answered with an error"
    why = "A newer kubelet may call it and must learn that it does not exist."
    fix = "Leave it to the gRPC library, which answers UNIMPLEMENTED."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            error = await _raw(verifier, plugin, f"{SERVICE}/PlugwrightVerify", b"")
            expect(isinstance(error, PeerRefused), "UNIMPLEMENTED", str(error or "an answer"))
        await check_alive(verifier, "a call of an unknown method")


class SurvivesLargeRequest(Rule):
    id, level, facts = "FLT-04", Level.MUST, ("8.17",)
    title = "A request of 5 MiB is answered or refused"
    why = "The kubelet does not limit the size of its requests, and many devices make a large one."
    fix = "Raise the limit for received messages, and do not exit if it is exceeded."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            device_id = b"x" * 1000
            container = (b"\x0a" + _length(device_id)) * (_LARGE // len(device_id))
            with suppress(PlugwrightError):
                await _raw(verifier, plugin, _ALLOCATE, b"\x0a" + _length(container))
        await check_alive(verifier, "a large request")


class SurvivesEmptyRequest(Rule):
    id, level, facts = "FLT-05", Level.MUST, ()
    title = "An Allocate without containers, and one without devices, do no harm"
    why = "A limit of 0 reaches some plugins as such a request; an index out of range ends the process."
    fix = "Loop over the entries; never take the first one without a check."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            with suppress(PeerRefused):
                await allocate(verifier, plugin)
            with suppress(PeerRefused):
                await allocate(verifier, plugin, [])
        await check_alive(verifier, "an empty request")


class SurvivesGarbage(Rule):
    id, level, facts = "FLT-06", Level.MUST, ()
    title = "Bytes that are not HTTP/2 end their own connection only"
    why = "Probes and other processes connect occasionally."
    fix = "Leave connections to the gRPC library; if one fails, close only that connection and not the server."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, hostile_frames.PREFACE + b"\xff" * 100, b""):
                await hostile_frames.send(plugin.socket, data)
        await check_alive(verifier, "bytes that are not HTTP/2")


class SurvivesHostileFrames(Rule):
    id, level, facts = "FLT-07", Level.MUST, ()
    title = "Frames that break HTTP/2 end their own connection only"
    why = "A client with another gRPC library, or one that was interrupted, may send an incomplete frame."
    fix = "Use a maintained gRPC library, and update it."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            for data in hostile_frames.HOSTILE:
                await hostile_frames.send(plugin.socket, hostile_frames.PREFACE + hostile_frames.SETTINGS + data)
        await check_alive(verifier, "hostile frames")


class ServesBesideSilentConnections(Rule):
    id, level, facts = "FLT-08", Level.MUST, ()
    title = f"{_SILENT_CONNECTIONS} connections that stay silent do not keep others out"
    why = "Killed kubelets and probes leave connections behind that never send anything."
    fix = "Serve each connection separately; otherwise waiting connections use up a small pool of threads."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            async with AsyncExitStack() as stack:
                for _ in range(_SILENT_CONNECTIONS):
                    await stack.enter_async_context(hostile_frames.opened(plugin.socket, b""))
                await check_alive(verifier, f"{_SILENT_CONNECTIONS} silent connections")


class ServesBesideSlowReader(Rule):
    id, level, facts = "FLT-09", Level.MUST, ()
    title = "A client that does not read its list does not block other clients"
    why = "A hanging kubelet must not prevent the next one from seeing the devices."
    fix = "Do not hold a lock while you send."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            async with hostile_frames.opened(plugin.socket, hostile_frames.unread_call(_LIST)):
                await hostile_frames.ping(plugin.socket, verifier.limits.call)
                await check_alive(verifier, "a stream that nobody reads")
                if plugin.ids:
                    await outcome(allocate(verifier, plugin, plugin.ids[:1]))
                await expect_list(verifier, plugin, "another stream")


class ServesAfterCancelledStreams(Rule):
    id, level, facts = "FLT-10", Level.MUST, ("2.15",)
    title = f"The plugin serves after {_CANCELLED_STREAMS} streams that were opened and cancelled"
    why = (
        "Each restart of a kubelet cancels a stream; if each stream holds a thread or a slot, none is left after "
        "some time."
    )
    fix = "Return from ListAndWatch when its context is cancelled."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await verifier.plugins():
            for _ in range(_CANCELLED_STREAMS // 10):
                await hostile_frames.send(plugin.socket, hostile_frames.cancelled_calls(_LIST, 10))
            for _ in range(_READ_STREAMS):
                await expect_list(verifier, plugin, "a stream after others that were cancelled")
            await check_alive(verifier, "cancelled streams")
            await expect_list(verifier, plugin, "another stream")


class SurvivesCutAllocate(Rule):
    id, level, facts = "FLT-11", Level.MUST, ("3.39",)
    title = "A kubelet that is killed during Allocate can allocate the device later"
    why = "The next kubelet admits the pod again with the same devices."
    fix = "Do not mark a device as taken in Allocate; release everything you hold when the call is cancelled."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_devices(verifier):
            await _cut(plugin, _ALLOCATE, b"\x0a" + _length(b"\x0a" + _length(plugin.ids[0].encode())))
            await check_alive(verifier, "a cut Allocate")
            error = await outcome(allocate(verifier, plugin, plugin.ids[:1]))
            expect(error is None, f"{plugin.ids[0]!r} can be allocated", str(error))


class SurvivesCutPreference(Rule):
    id, level, facts = "FLT-12", Level.MUST, ("3.30",)
    title = "A kubelet that is killed during GetPreferredAllocation does no harm"
    why = "The next kubelet asks again."
    fix = "Do not hold a lock during the call; end the search when the context is cancelled."

    async def check(self, verifier: Verifier) -> None:
        for plugin in await with_option(verifier, "preference"):
            ids = b"".join(b"\x0a" + _length(device_id.encode()) for device_id in plugin.ids)
            message = b"\x0a" + _length(ids + b"\x18\x01")
            path = f"{SERVICE}/GetPreferredAllocation"
            await _cut(plugin, path, message)
            await check_alive(verifier, "a cut GetPreferredAllocation")
            error = await _raw(verifier, plugin, path, message)
            expect(error is None, "an answer afterwards", str(error))


class SurvivesCutRegister(Rule):
    id, level, facts, alone = "FLT-13", Level.MUST, ("1.31", "8.3"), True
    title = "A kubelet that is killed during Register is followed by another registration"
    why = "A kubelet that crashes while it starts does so at this point; its successor needs a registration."
    fix = "Treat a broken Register call like a refused one: try again, or exit with an error."

    async def check(self, verifier: Verifier) -> None:
        async with verifier.fresh() as session:
            with session.holding_registrations():
                program = await session.start_program()
                async with asyncio.timeout(verifier.limits.start):
                    await session.arrived.wait()
                await session.kubelet.stop()
            mark = session.mark
            await session.kubelet.start()
            try:
                await session.until_registered(verifier.resources, mark=mark)
            except PluginNotRunning as error:
                expect(
                    not program.running and program.returncode, "another Register, or an exit with an error", str(error)
                )


def _length(content: bytes) -> bytes:
    """The content preceded by its length, as in protobuf."""
    return _varint(len(content)) + content


def _varint(number: int) -> bytes:
    digits: list[int] = []
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


RULES: tuple[type[Rule], ...] = (
    SurvivesMalformed,
    IgnoresUnknownFields,
    RefusesUnknownMethod,
    SurvivesLargeRequest,
    SurvivesEmptyRequest,
    SurvivesGarbage,
    SurvivesHostileFrames,
    ServesBesideSilentConnections,
    ServesBesideSlowReader,
    ServesAfterCancelledStreams,
    SurvivesCutAllocate,
    SurvivesCutPreference,
    SurvivesCutRegister,
)
