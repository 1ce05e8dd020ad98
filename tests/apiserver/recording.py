"""Recordings of kubectl's requests, which tests replay without kubectl.

    python -m tests.apiserver.recording KUBECTL …

runs one session of every program against our server and writes `recorded/kubectl-VERSION.json`. Watches, which do not
end, are left out.
"""

import asyncio
import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.apiserver.serving import TOKEN, container, pod, populated, server

from plugwright.apiserver import tls
from plugwright.apiserver.app import application
from plugwright.apiserver.store import Store

__all__ = ["RECORDED", "STEPS"]

RECORDED = Path(__file__).parent / "recorded"
Step = tuple[str, object]
_DISCOVERY = ("/openapi", "/apis?", "/api?")
GPU = '[{"op":"add","path":"/status/capacity/mock~1gpu","value":"10"}]'
POD = pod("p", container(resources={"limits": {"mock/gpu": 2}}), labels={"app": "x"})
STEPS: list[Step] = [
    ("create namespace team", None),
    ("create configmap settings --from-literal=a=b", None),
    ("create serviceaccount bob", None),
    ("create -f -", {**POD, "metadata": {"generateName": "job-"}}),
    ("apply -f -", POD),
    ("apply -f -", {**POD, "metadata": {"name": "p", "labels": {"app": "y"}}}),
    ("apply --server-side -f -", POD),
    ("diff -f -", POD),
    ("replace -f -", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "c"}}),
    ("create --dry-run=server -f -", pod("never")),
    ("create -f -", pod("wrong", container(resources={"limits": {"mock/gpu": "1.5"}}))),
    ("get pods", None),
    ("get pods -o wide --chunk-size=1", None),
    ("get pods -l app=y -o yaml", None),
    ("get nodes", None),
    ("get all", None),
    ("get pod nope", None),
    ("label pod p team=blue", None),
    ("annotate pod p note=hello", None),
    ("taint node node key=value:NoSchedule", None),
    ("cordon node", None),
    ("uncordon node", None),
    (f"patch node node --subresource=status --type=json -p {GPU}", None),
    ('patch pod p -p {"spec":{"containers":[{"name":"main","image":"busybox:2"}]}}', None),
    ("patch node node --type=merge -p {}", None),
    (
        "create --raw /api/v1/namespaces/default/pods/p/binding -f -",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "node"}},
    ),
    ("describe pod p", None),
    ("describe node node", None),
    ("logs p", None),
    ("auth can-i create pods", None),
    ("auth whoami", None),
    ("get events", None),
    ("drain node --force --timeout=1s", None),
    ("delete pod p --force --grace-period=0 --wait=false", None),
    ("delete configmap settings --wait=false", None),
    ("delete namespace team --wait=false", None),
]


class Recorder:
    """ASGI middleware that remembers the requests that were answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.seen = app, list[dict[str, Any]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, codes = bytearray(), list[int]()

        async def reading() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                codes.append(message["status"])
            await send(message)

        await self._app(scope, reading, sending)
        if b"watch=" not in scope["query_string"] and codes:
            self.seen.append(_recorded(scope, bytes(body), codes[0]))


def _recorded(scope: Scope, body: bytes, code: int) -> dict[str, Any]:
    headers = {
        name.decode(): value.decode() for name, value in scope["headers"] if name in (b"accept", b"content-type")
    }
    query = scope["query_string"].decode()
    request: dict[str, Any] = {"method": scope["method"], "path": scope["path"] + (f"?{query}" if query else "")}
    request |= {"headers": headers, "code": code}
    try:
        return {**request, "body": json.loads(body)} if body else request
    except ValueError:
        return {**request, "base64": base64.b64encode(body).decode()}


async def record(kubectl: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        certificates = tls.make(directory)
        recorder = Recorder(application(server(populated(Store()))))
        config = uvicorn.Config(
            recorder, port=0, log_level="critical", lifespan="off",
            ssl_certfile=certificates.certificate, ssl_keyfile=certificates.key, timeout_graceful_shutdown=1,
        )  # fmt: skip
        socket = config.bind_socket()
        running = uvicorn.Server(config)
        serving = asyncio.create_task(running.serve([socket]))
        while not running.started:
            await asyncio.sleep(0.01)
        call = [
            kubectl, f"--server=https://127.0.0.1:{socket.getsockname()[1]}", f"--token={TOKEN}",
            f"--certificate-authority={certificates.authority}", f"--cache-dir={directory}/cache",
        ]  # fmt: skip
        steps = [await _play(call, step, recorder) for step in STEPS]
        versions = json.loads(await _output([kubectl, "version", "--client", "-o", "json"]))
        running.should_exit = True
        await serving
    RECORDED.mkdir(exist_ok=True)
    text = "[\n" + ",\n".join(json.dumps(step) for step in steps) + "\n]\n"
    version = versions["clientVersion"]["gitVersion"].removeprefix("v")
    (RECORDED / f"kubectl-{version}.json").write_text(text)


async def _play(call: list[str], step: Step, recorder: Recorder) -> dict[str, Any]:
    arguments, manifest = step
    recorder.seen.clear()
    await _output([*call, *arguments.split()], json.dumps(manifest).encode() if manifest else b"")
    requests = [request for request in recorder.seen if not request["path"].startswith(_DISCOVERY)]
    return {"kubectl": arguments, "asks": [request for request in requests if "/v1?timeout" not in request["path"]]}


async def _output(command: list[str], stdin: bytes = b"") -> bytes:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    return (await process.communicate(stdin))[0]


if __name__ == "__main__":
    for program in sys.argv[1:]:
        asyncio.run(record(program))
