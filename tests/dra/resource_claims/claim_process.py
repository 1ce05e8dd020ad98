"""A driver in a process of its own: `python -m tests.dra.resource_claims.claim_process ROOT NAME`, until it is killed.

The claims are in ROOT/claims.json. Each call of allocate() is a line in ROOT/allocated; while ROOT/hold is there, it
does not return.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

from tests.dra.resource_claims.claim_node import PATIENT, QUICK, ClaimNode, Documents, Drives

from plugwright.errors import PeerRefused
from plugwright.model import Allocation, Device
from plugwright.protocol import dra, transport
from plugwright.protocol.dra import DRAPluginClient


class FileDocuments(Documents):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    async def claim(self, namespace: str, name: str) -> Mapping[str, object]:
        for document in json.loads(self.path.read_bytes()):
            if document["metadata"]["name"] == name:
                found: dict[str, object] = document
                return found
        raise PeerRefused("NotFound", name)


class HeldDrives(Drives):
    async def allocate(self, devices: Sequence[Device]) -> Allocation:
        with (self.root / "allocated").open("a") as file:
            print(*(device.id for device in devices), file=file)
        while (self.root / "hold").exists():
            await asyncio.sleep(0.01)
        return await super().allocate(devices)


async def serve(root: Path, name: str) -> None:
    node = ClaimNode(
        root, FileDocuments(root / "claims.json"), HeldDrives.on(root), settings=PATIENT if name == "held" else QUICK
    )
    node.plugin_dir.mkdir(parents=True, exist_ok=True)
    async with transport.serve(node.plugin_dir / f"{name}.sock", dra.methods(node.preparation)):
        print("serving", flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def running(root: Path, name: str, *documents: dict[str, Any]) -> AsyncIterator[DRAPluginClient]:
    """The process, killed in the end."""
    if documents:
        (root / "claims.json").write_text(json.dumps(documents))
    command = (sys.executable, "-m", __name__, str(root), name)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=Path(__file__).parents[3], stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"serving\n"
        socket = ClaimNode.on(root).plugin_dir / f"{name}.sock"
        async with dra.connect(socket) as client:
            yield client
            process.send_signal(SIGKILL)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
