"""`kubectl exec` and `attach` over real WebSockets, and clients that break the protocol."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.embedding import Lab, embedded
from tests.cluster.web_sockets import CommandClient, WebSocketClient, commanding, frame

SLEEP = [{"name": "main", "image": "demo", "command": ["sleep", "600"], "env": [{"name": "WORD", "value": "here"}]}]


@asynccontextmanager
async def running(directory: Path, processes: bool = True) -> AsyncIterator[tuple[Lab, CommandClient]]:
    """A pod `p` whose container sleeps and has one device."""
    async with embedded(processes=processes) as lab, commanding(lab, directory) as client:
        await lab.offered()
        container = {**SLEEP[0], "resources": {"limits": {"mock/gpu": "1"}}}
        lab.create("p", containers=[container], terminationGracePeriodSeconds=1)
        await lab.phase("p")
        if processes:
            await lab.container("p", lambda status: "running" in status["state"])
        yield lab, client


async def test_a_command_has_the_streams_the_environment_and_the_exit_code_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        ended = await client.run("p", "sh", "-c", "echo $WORD $MOCK_VISIBLE_DEVICES; echo oops >&2; exit 3")
        assert ended.output.startswith(b"here mock-")
        assert (ended.errors, ended.code) == (b"oops\n", 3)
        assert ended.status["reason"] == "NonZeroExitCode"
        assert (await client.run("p", "true")).status["status"] == "Success"


async def test_input_arrives_whole_and_ends(tmp_path: Path) -> None:
    pieces = [b"\x00" + bytes([65 + number]) * 40_000 for number in range(8)]
    async with running(tmp_path) as (_, client):
        ended = await client.run("p", "wc", "-c", given=[*pieces, b"\xff\x00"])
        assert ended.output.split() == [b"320000"]


async def test_large_output_arrives_whole(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        ended = await client.run("p", "sh", "-c", "head -c 3000000 /dev/zero")
        assert len(ended.output) == 3_000_000


async def test_a_terminal_has_the_size_of_the_client(tmp_path: Path) -> None:
    size = b"\x04" + json.dumps({"Width": 91, "Height": 33}).encode()
    typed = [size, b"\x00stty size; tty; exit 4\n"]
    async with running(tmp_path) as (_, client):
        ended = await client.run("p", "sh", given=typed, tty=True)
        assert b"33 91" in ended.output
        assert b"/dev/pts/" in ended.output
        assert ended.code == 4


async def test_a_command_ends_with_its_client(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with running(tmp_path) as (_, client):
        path = client.path("p", "sh", "-c", f"echo $$ > {pid_file}; exec sleep 600", stdout="true")
        async with client.connected() as connection:
            assert (await connection.upgrade(path, client.token, "v5.channel.k8s.io"))[0] == 101
            async with asyncio.timeout(30):
                while not pid_file.exists() or not pid_file.read_text():
                    await asyncio.sleep(0)
        process = Path("/proc") / pid_file.read_text().strip()
        async with asyncio.timeout(30):
            while process.exists():
                await asyncio.sleep(0)


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        ended = await client.run("p", "no-such-command")
        assert b"no-such-command: No such file or directory" in ended.output
        assert ended.code == 127


@pytest.mark.parametrize(
    ("pod", "flags", "code", "text"),
    [
        ("nobody", {}, 404, 'pods "nobody" not found'),
        ("p", {"container": "other"}, 400, "container other is not valid for pod p"),
    ],
)
async def test_a_command_that_cannot_run_is_refused(
    tmp_path: Path, pod: str, flags: dict[str, str], code: int, text: str
) -> None:
    async with running(tmp_path) as (_, client), client.connected() as connection:
        path = client.path(pod, "true", **flags)
        status, _, body = await connection.upgrade(path, client.token, "v5.channel.k8s.io")
        assert status == code
        assert text in json.loads(body)["message"]


async def test_a_client_without_the_token_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client), client.connected() as connection:
        status, _, _ = await connection.upgrade(client.path("p", "true"), "guessed", "v5.channel.k8s.io")
        assert status == 401


async def test_a_client_of_another_protocol_is_told_which(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client), client.connected() as connection:
        status, _, body = await connection.upgrade(client.path("p", "true"), client.token, "v9.channel.k8s.io")
        assert status == 400
        assert "v5.channel.k8s.io" in json.loads(body)["message"]


async def test_without_processes_a_command_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with running(tmp_path, processes=False) as (_, client), client.connected() as connection:
        status, _, body = await connection.upgrade(client.path("p", "true"), client.token, "v5.channel.k8s.io")
        assert status == 400
        assert "use `plugwright up --run`, or `plugwright join`" in json.loads(body)["message"]


async def attached(client: CommandClient, connection: WebSocketClient, tty: bool = False) -> None:
    flags = {"stdin": "true", "stdout": "true", **({"tty": "true"} if tty else {})}
    path = client.path("p", subresource="attach", **flags)
    assert (await connection.upgrade(path, client.token, "v5.channel.k8s.io"))[0] == 101


async def test_attached_input_reaches_the_container_and_ends_with_its_first_client(tmp_path: Path) -> None:
    cat = {**SLEEP[0], "command": ["cat"], "stdin": True, "stdinOnce": True}
    async with embedded(processes=True) as lab, commanding(lab, tmp_path) as client:
        lab.create("p", containers=[cat], restartPolicy="Never")
        await lab.container("p", lambda status: "running" in status["state"])
        async with client.connected() as connection:
            await attached(client, connection)
            connection.writer.write(frame(b"\0one\n") + frame(b"\0two\n") + frame(b"\xff\0"))
            assert await everything(connection) == b"one\ntwo\n"
        await lab.phase("p", "Succeeded")


async def test_attached_terminal_shows_prompts_and_has_the_size_of_the_client(tmp_path: Path) -> None:
    script = 'printf "name? "; read name; stty size; echo "hello $name"; exit 5'
    shell = {**SLEEP[0], "command": ["sh", "-c", f"read start; {script}"], "stdin": True, "tty": True}
    async with embedded(processes=True) as lab, commanding(lab, tmp_path) as client:
        lab.create("p", containers=[shell], restartPolicy="Never")
        await lab.container("p", lambda status: "running" in status["state"])
        async with client.connected() as connection:
            await attached(client, connection, tty=True)
            size = b"\x04" + json.dumps({"Width": 91, "Height": 33}).encode()
            connection.writer.write(frame(size) + frame(b"\0\r"))
            shown = b""
            async with asyncio.timeout(30):
                while b"name? " not in shown:  # a prompt is no whole line
                    shown += (await connection.receive())[1][1:]
            connection.writer.write(frame("\0Zoë\r".encode()))
            shown += await everything(connection)
            assert "33 91\r\nhello Zoë\r\n".encode() in shown
        await lab.phase("p", "Failed")
        assert "hello Zoë" in lab.cluster.nodes["node-1"].log(lab.pod("p") or {}, "main")


async def everything(connection: WebSocketClient) -> bytes:
    """What the container writes until it ends."""
    shown = b""
    async with asyncio.timeout(30):
        while (received := await connection.receive())[0] != 8:
            shown += received[1][1:] if received[1][:1] == b"\x01" else b""
    return shown


async def test_attach_shows_output_and_gives_no_input_to_a_container_without_stdin(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        async with client.connected() as connection:
            path = client.path("p", subresource="attach", stdin="true", stdout="true")
            status, _, body = await connection.upgrade(path, client.token, "v5.channel.k8s.io")
            assert status == 400
            assert "kubectl exec -it" in json.loads(body)["message"]
        async with client.connected() as connection:
            path = client.path("p", subresource="attach", stdout="true")
            assert (await connection.upgrade(path, client.token, "v5.channel.k8s.io"))[0] == 101
            assert await connection.receive() == (2, b"\x01")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(b"\x00x", masked=False), 1002),
        (bytes((0xC2, 0x80, 0, 0, 0, 0)), 1002),  # a reserved bit
        (frame(b"", opcode=7), 1002),
        (bytes((0x82, 0xFF)) + (2**40).to_bytes(8) + b"\0\0\0\0", 1009),
        (b"".join(frame(bytes(2**19), opcode=2 if number == 0 else 0, final=False) for number in range(3)), 1009),
    ],
    ids=["unmasked", "reserved", "unknown", "too-long", "fragments"],
)
async def test_a_frame_against_the_protocol_ends_the_connection(tmp_path: Path, sent: bytes, code: int) -> None:
    async with running(tmp_path) as (_, client), client.connected() as connection:
        path = client.path("p", "sleep", "600", stdin="true")
        assert (await connection.upgrade(path, client.token, "v5.channel.k8s.io"))[0] == 101
        assert (await connection.receive())[1] == b"\x01"
        connection.writer.write(sent)
        opcode, payload = await connection.receive()
        assert (opcode, int.from_bytes(payload)) == (8, code)


async def test_a_ping_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client), client.connected() as connection:
        path = client.path("p", "sleep", "600", stdin="true")
        assert (await connection.upgrade(path, client.token, "v5.channel.k8s.io"))[0] == 101
        await connection.receive()
        connection.writer.write(frame(b"are you there", opcode=9))
        assert await connection.receive() == (10, b"are you there")
