"""The claims of a pod as kubelets send them; the bytes below were written by hand from the field numbers of the API."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.proto import draplugin_v1_pb2 as v1
from tests.proto import draplugin_v1beta1_pb2 as v1beta1

from plugwright.errors import PeerRefused
from plugwright.protocol import dra, transport
from plugwright.protocol.dra import Claim, PreparedDevice

CLAIM = Claim("ns", "c", "u-1")
CLAIMS_ON_THE_WIRE = b"\x0a\x0c\x0a\x02ns\x12\x03u-1\x1a\x01c"
DEVICE = PreparedDevice("node", "gpu-0", ("gpu",), ("a.b/c=gpu-0",), "s-1")
DEVICE_ON_THE_WIRE = b"\x0a\x03gpu\x12\x04node\x1a\x05gpu-0\x22\x0ba.b/c=gpu-0\x2a\x03s-1"
PREPARED_ON_THE_WIRE = b"\x0a\x2d" + b"\x0a\x03u-1" + b"\x12\x26" + b"\x0a\x24" + DEVICE_ON_THE_WIRE


class Driver:
    def __init__(self, *devices: PreparedDevice) -> None:
        self.devices = devices
        self.prepared: list[Claim] = []

    async def prepare(self, claims: Sequence[Claim]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        self.prepared += claims
        return {claim.uid: self.devices or f"{claim.name} is not allocated" for claim in claims}

    async def unprepare(self, claims: Sequence[Claim]) -> Mapping[str, str]:
        return {claim.uid: "" if claim in self.prepared else f"{claim.name} was never prepared" for claim in claims}


@pytest.mark.parametrize("version", dra.VERSIONS)
async def test_a_claim_is_prepared_and_unprepared_in_either_version(root: Path, version: str) -> None:
    driver = Driver(DEVICE)
    async with transport.serve(root / "s", dra.methods(driver)), dra.connect(root / "s", version) as kubelet:
        expected = DEVICE if version == "v1.DRAPlugin" else replace(DEVICE, share_id="")
        assert await kubelet.prepare([CLAIM]) == {"u-1": [expected]}
        assert driver.prepared == [CLAIM]
        assert await kubelet.unprepare([CLAIM, Claim("ns", "d", "u-2")]) == {"u-1": "", "u-2": "d was never prepared"}


async def test_a_claim_that_fails_says_why(root: Path) -> None:
    async with transport.serve(root / "s", dra.methods(Driver())), dra.connect(root / "s") as kubelet:
        assert await kubelet.prepare([CLAIM]) == {"u-1": "c is not allocated"}


async def test_no_claims_are_no_results(root: Path) -> None:
    async with transport.serve(root / "s", dra.methods(Driver())), dra.connect(root / "s") as kubelet:
        assert await kubelet.prepare([]) == {} == await kubelet.unprepare([])


async def test_a_version_that_is_not_served_is_unimplemented(root: Path) -> None:
    only_beta = dra.methods(Driver(DEVICE), ["v1beta1.DRAPlugin"])
    async with transport.serve(root / "s", only_beta), dra.connect(root / "s", "v1.DRAPlugin") as kubelet:
        with pytest.raises(PeerRefused) as refused:
            await kubelet.prepare([CLAIM])
    assert refused.value.code == "UNIMPLEMENTED"


async def test_the_bytes_are_the_kubelets(root: Path) -> None:
    driver = Driver(DEVICE)
    async with transport.serve(root / "s", dra.methods(driver)), transport.connect(root / "s") as kubelet:
        path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
        assert await kubelet.call_encoded(path, CLAIMS_ON_THE_WIRE) == PREPARED_ON_THE_WIRE
    assert driver.prepared == [CLAIM]


def test_protobuf_reads_the_bytes_so_too() -> None:
    assert v1.NodePrepareResourcesRequest.FromString(CLAIMS_ON_THE_WIRE).claims[0].uid == "u-1"
    prepared = v1.NodePrepareResourcesResponse.FromString(PREPARED_ON_THE_WIRE).claims["u-1"]
    assert (prepared.devices[0].share_id, list(prepared.devices[0].request_names)) == ("s-1", ["gpu"])
    assert not v1beta1.NodePrepareResourcesResponse.FromString(PREPARED_ON_THE_WIRE).claims["u-1"].error
