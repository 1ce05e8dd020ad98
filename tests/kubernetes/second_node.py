"""Another node of a cluster: a containerd and a kubelet in namespaces of their own, as if on another machine.

    with Cluster(version) as cluster, SecondNode(cluster) as second:
        cluster.kubectl("drain", second.name)

A pair of virtual network cards is the cable between both. Whatever is left of it goes with the cluster: its files are
below those of the cluster, and so are its cgroups.
"""

import shutil
from contextlib import ExitStack

from tests.kubernetes import cgroups, machine
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.components import API, FIRST, SECOND, Files
from tests.kubernetes.enclosure import Enclosure
from tests.kubernetes.host import Host

__all__ = ["SecondNode"]

_CARDS = "to-second", "to-first"  # the one in the cluster's namespaces, and the one in here


class SecondNode(Host):
    def __init__(self, cluster: Cluster) -> None:
        self.name = SECOND.name
        self.version, self.kubectl, self.programs = cluster.version, cluster.kubectl, cluster.programs
        self.components = {}
        self.state = cluster.state / self.name
        self.files = Files(self.state, SECOND)
        self.cgroup = f"{cluster.cgroup}/{self.name}"
        self._cluster = cluster
        self._stack = ExitStack()

    def __enter__(self) -> "SecondNode":
        with ExitStack() as stack:
            self.state.mkdir()
            stack.callback(shutil.rmtree, self.state, ignore_errors=True)
            cgroups.make(self.cgroup)
            stack.callback(cgroups.remove, self.cgroup)
            self.enclosure = Enclosure(self.state, kept_open=[self._cluster.lock])
            (self._cluster.enclosure.logs / self.name).symlink_to(self.enclosure.logs)  # they are kept together
            stack.callback((self._cluster.enclosure.logs / self.name).unlink)
            stack.callback(self._remove_from_the_cluster)
            stack.callback(self._end_components)
            stack.callback(self.enclosure.close)
            self.enclosure.open()
            self._connect()
            self._bring_up()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _connect(self) -> None:
        """Each node reaches the other and its pods, and this one the API server."""
        first, here = self._cluster.enclosure, self.enclosure
        first.connect(here, *_CARDS)
        sides = (
            (first, _CARDS[0], FIRST.address, SECOND.address, (SECOND.pods,)),
            (here, _CARDS[1], SECOND.address, FIRST.address, (API, FIRST.pods)),
        )
        for enclosure, card, own, other, behind in sides:
            for arguments in (
                ("address", "add", own, "peer", other, "dev", card),
                ("link", "set", card, "up"),
                *(("route", "add", there, "via", other, "dev", card) for there in behind),
            ):
                done = enclosure.run("ip", *arguments)
                assert done.returncode == 0, (arguments, done.stderr)

    def _bring_up(self) -> None:
        cni = machine.cni_plugins()
        assert cni is not None
        shutil.copy2(self._cluster.files.node_of(SECOND), self.files.node)
        shutil.copy2(self._cluster.files.admin, self.files.admin)
        self.files.write_node(self.cgroup, cni)
        self.start("containerd")
        self._until("containerd answers", self.files.runtime_socket.exists)
        self.load_image(self._cluster.state / "busybox.tar")
        self.start("kubelet")
        self._until("the node is ready", self._node_is_ready)

    def _remove_from_the_cluster(self) -> None:
        """The cluster may have ended, or be about to."""
        self.kubectl.works("delete", "node", self.name, "--ignore-not-found")
