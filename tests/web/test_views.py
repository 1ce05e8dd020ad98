"""The views of a node, a device, waiting pods and claims over a real socket, and the buttons of simulated devices."""

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.embedding import Lab
from tests.web.visits import Answer, Visit, page_of

from plugwright.apiserver.kinds import RESOURCE_CLAIMS
from plugwright.apiserver.registry import ResourcePath
from plugwright.model import Device
from plugwright.plugins.mock import Mock, MockOptions
from plugwright.sdk.plugin import Plugin

HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202egnp"


class Strange(Plugin):
    """A real device with a reason that somebody else has written."""

    resource = "example.com/strange"

    def discover(self) -> list[Device]:
        return [Device("strange-0", "Unhealthy", HOSTILE, attributes={"model": HOSTILE, "links": {"<b>": HOSTILE}})]


def plugins(node: str) -> list[Plugin]:
    return [Mock("mock/gpu", MockOptions(count=2, numa=2, model="A100")), Strange()]


def device_id(lab: Lab, index: int = 0) -> str:
    snapshot = lab.cluster.daemon("node-1").resources["mock/gpu"].inventory.latest.value
    assert snapshot is not None
    return sorted(snapshot.devices)[index]


def forms(page: Answer) -> dict[str, dict[str, str]]:
    """The hidden fields of each form, by its command."""
    found = {}
    for form in re.findall(r'<form class="command".*?</form>', page.body):
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        found[fields["name"]] = {name: html.unescape(value) for name, value in fields.items()}
    return found


def address(device: str) -> str:
    return f"/device?node=node-1&resource=mock%2Fgpu&id={device}"


async def pressed(visit: Visit, form: Mapping[str, str]) -> str:
    answer = await visit.post("/command", form, Accept="application/json")
    assert answer.status == 200, answer.body
    return str(json.loads(answer.body)["done"])


async def test_buttons_change_simulated_devices_for_pages_of_ours_alone(root: Path) -> None:
    async with page_of(root, plugins=plugins) as (lab, visit):
        device = device_id(lab)
        page = await visit.until(address(device), lambda page: "Simulation" in page.words)
        buttons = forms(page)
        assert buttons.keys() == {"fail", "recover", "remove"}
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": ""},
            {"Origin": "http://127.0.0.1:1"},
        ):
            assert (await visit.post("/command", buttons["fail"], **headers)).status == 403
        assert (await visit.post("/command", buttons["fail"], **{"Sec-Fetch-Site": "cross-site"})).status == 403
        assert (await visit.post("/command", {**buttons["fail"], "token": "guess"})).status == 403
        assert (await visit.post("/command", {**buttons["fail"], "id": "x" * 9000})).status == 413
        strange = {**buttons["fail"], "resource": Strange.resource, "id": "strange-0"}
        assert (await visit.post("/command", strange)).status == 409
        assert "Healthy" in (await visit.get(address(device))).words

        assert "is now Unhealthy" in await pressed(visit, buttons["fail"])
        await visit.until(address(device), lambda page: "made to fail on the page" in page.words)
        assert "is now Healthy" in await pressed(visit, buttons["recover"])
        await visit.until(address(device), lambda page: "U unhealthy" not in page.words)
        assert "was removed" in await pressed(visit, buttons["remove"])
        await visit.until(address(device), lambda page: "No such device" in page.words or "unhealthy" in page.words)
        node = await visit.get("/node?name=node-1")
        assert "was added" in await pressed(visit, {**forms(node)["add"], "id": "mock-new"})
        await visit.until("/node?name=node-1", lambda page: "mock-new" in page.words)
        plain = await visit.post("/command", {**buttons["fail"], "id": "mock-new"})  # without the script
        assert (plain.status, plain.headers["location"]) == (303, address("mock-new").replace("%2F", "%2F"))


async def test_a_node_shows_its_devices_by_numa_node_and_texts_from_outside_are_inert(root: Path) -> None:
    async with page_of(root, plugins=plugins) as (lab, visit):
        lab.create("one", {"mock/gpu": "1"})
        page = await visit.until("/node?name=node-1", lambda page: "default/one/main" in page.words)
        assert page.words.count("NUMA node 0") == 1
        assert page.words.count("NUMA node 1") == 1
        shown = html.escape("<img src=x onerror=alert(1)>\"'&\\x1b[31m\\u202egnp")
        for target in ("/node?name=node-1", "/device?node=node-1&resource=example.com%2Fstrange&id=strange-0", "/"):
            page = await visit.get(target)
            assert shown in page.body, target
            assert "<img" not in page.body, target
            assert not set("\x1b\u202e") & set(page.body), target
        held = re.findall(r'<code>([^<]*)</code> <button type="button" class="copy" data-copy="([^"]*)"', page.body)
        assert all(line == copied for line, copied in held)
        assert "No such node is known" in (await visit.get("/node?name=%3Cscript%3E")).words
        assert "No such device" in (await visit.get(address("%22%3E%3Cscript%3E"))).words


async def test_waiting_pods_have_their_reason_and_claims_their_devices(root: Path) -> None:
    async with page_of(root, plugins=plugins) as (lab, visit):
        await lab.offered(count="2")
        lab.create("large", {"mock/gpu": "3"})
        page = await visit.until("/waiting", lambda page: "no node has 3 free mock/gpu" in page.words)
        assert "1 waiting pod" in page.words
        assert "kubectl plugwright why -n default large" in page.words
        lab.delete("large", grace=0)
        await visit.until("/waiting", lambda page: "No pod waits for devices" in page.words)

        request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.example.com", "count": 2}}
        claim = {"metadata": {"name": "two"}, "spec": {"devices": {"requests": [request]}}}
        lab.writer.create(ResourcePath(RESOURCE_CLAIMS, "default", "two"), claim, "test")
        page = await visit.until("/claims", lambda page: "default/two" in page.words)
        assert "1 claim, 0 with devices" in page.words
        assert "gpus: 2 of gpu.example.com" in page.words
        assert "No claim matches" in (await visit.get("/claims?q=other")).words
