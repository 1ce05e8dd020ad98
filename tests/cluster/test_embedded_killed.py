"""An embedded cluster killed with SIGKILL: the next one has every object that was written."""

import asyncio
import signal
import sys
from pathlib import Path

from tests.cluster.embedding import embedded

_SCRIPT = """
import asyncio, sys
from pathlib import Path
from tests.cluster.embedding import embedded

async def main():
    async with embedded(state=Path(sys.argv[1])) as lab:
        await lab.offered()
        for name, count in (("kept", "7"), ("gone", "3")):
            lab.create(name, {"mock/gpu": count})
            await lab.phase(name)
        lab.delete("gone")
        await lab.gone("gone")
        print(lab.cluster.log("default", "kept", "main"), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_pods_keep_their_devices_and_deleted_pods_stay_deleted(tmp_path: Path) -> None:
    state = tmp_path / "state"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SCRIPT, str(state)), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    try:
        written = [await process.stdout.readline() for _ in range(3)]
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with embedded(state=state) as lab:
        await lab.offered()
        assert lab.pod("gone") is None
        assert lab.cluster.log("default", "kept", "main").encode() == b"".join(written)
        lab.create("next", {"mock/gpu": "3"})
        await lab.phase("next")
        lab.create("most", {"mock/gpu": "1"})
        await lab.cluster.until(lambda: any(reason == "FailedScheduling" for reason, _ in lab.events("most")))
        held = [lab.cluster.log("default", name, "main") for name in ("kept", "next")]
        devices = [line for text in held for line in text.splitlines() if line.startswith("env MOCK_VISIBLE_DEVICES")]
        ids = [device_id for line in devices for device_id in line.partition("=")[2].split(",")]
        assert len(ids) == len(set(ids)) == 10
