"""Defects of answers."""

from tests.conformance.mutants.mutant import breaks
from tests.conformance.plugin import SmallPlugin
from tests.proto import deviceplugin_v1beta1_pb2 as pb

Response = pb.ContainerAllocateResponse


class OtherNode(SmallPlugin):
    host_path, container_path, permissions = "/dev/null", "", "rw"

    def node(self, device_id: str) -> pb.DeviceSpec:
        path = self.container_path or f"/dev/{device_id}"
        return pb.DeviceSpec(host_path=self.host_path, container_path=path, permissions=self.permissions)


@breaks("ANS-01")
class MissingNode(OtherNode):
    host_path = "/dev/no-such-part"


@breaks("ANS-02")
class FileAsNode(OtherNode):
    host_path = __file__


@breaks("ANS-03")
class RelativeNode(OtherNode):
    container_path = "dev/part"


@breaks("ANS-04")
class OtherPermissions(OtherNode):
    permissions = "rx"


@breaks("ANS-04")
class NoPermissions(OtherNode):
    permissions = ""


class MountingPlugin(SmallPlugin):
    host_path, container_path = "/etc", "/etc/part"

    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.mounts.add(host_path=self.host_path, container_path=self.container_path)
        return response


@breaks("ANS-05")
class MissingMount(MountingPlugin):
    host_path = "/no/such/part"


@breaks("ANS-06")
class RelativeMount(MountingPlugin):
    container_path = "part"


@breaks("ANS-07")
class VariableWithEquals(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.envs["PART=ONE"] = "1"
        return response


@breaks("ANS-08")
class UnqualifiedCdi(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.cdi_devices.add(name=ids[0] if ids else "none")
        return response


@breaks("ANS-09")
class UnresolvedCdi(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.cdi_devices.extend(pb.CDIDevice(name=f"example.com/part={device_id}") for device_id in ids)
        return response


@breaks("ANS-10", "1.27")
class CdiAlone(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        self.check(ids)
        return Response(cdi_devices=[pb.CDIDevice(name=f"example.com/part={device_id}") for device_id in ids])


@breaks("ANS-11")
class ConflictingPaths(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.devices.add(host_path="/dev/zero", container_path=response.devices[0].container_path, permissions="r")
        return response


@breaks("ANS-12")
class OddAnnotation(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        response.annotations["example.com/-part-"] = "1"
        return response


@breaks("ANS-13")
class HugeAnswer(SmallPlugin):
    def answer(self, ids: list[str]) -> Response:
        response = super().answer(ids)
        if len(ids) > 1:
            response.envs["MANUAL"] = "x" * 5_000_000
        return response
