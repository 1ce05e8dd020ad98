"""The effect that defects of a driver's registration, its restarts and its end have on a real kubelet."""

from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.rule_drivers import RuleDrivers
from tests.kubernetes.waiting import until

from plugwright.protocol import registration

_UNKNOWN = "is not registered"


@pytest.mark.plays("DRG-01", "DRG-03", "DRG-05", "DRG-06", "DRG-07", "DRE-02", "DRE-03", "DST-04", "DST-05", "DST-06")
def test_a_driver_that_the_kubelet_cannot_call(drivers: RuleDrivers) -> None:
    never = ("forgets-registration", "slow-get-info", "refuses-status")
    again = ("dies-of-damage", "dies-of-empty-file", "dies-of-left-socket", "announces-first")
    drivers.start(*never, *again, "serves-old-version", "leaves-sockets", "removes-successors-sockets")
    until("the kubelet waits in vain", lambda: drivers.cluster.kubelet.lines("slow-get-info.test"))
    drivers.published(*again, "serves-old-version", "leaves-sockets", "removes-successors-sockets")
    drivers.kill(*again)
    drivers.checkpoint("dies-of-damage").write_text('{"claims": ')
    drivers.checkpoint("dies-of-empty-file").write_text("")
    drivers.start("announces-first")
    first = drivers.processes["announces-first"]
    until("it is registered", lambda: first.lines("registered"))
    first.freeze()  # before it serves
    drivers.start(*again[:3])
    until("they have died", lambda: not any(drivers.processes[mutant].alive for mutant in again[:3]))
    drivers.processes["leaves-sockets"].stop()
    old = drivers.processes["removes-successors-sockets"]
    drivers.start("removes-successors-sockets")
    drivers.published("removes-successors-sockets")
    before = _unregistrations(drivers, "removes-successors-sockets")
    old.stop()
    until("it is lost", lambda: _unregistrations(drivers, "removes-successors-sockets") > before)
    words = {
        **dict.fromkeys((*never, "removes-successors-sockets"), _UNKNOWN),
        **dict.fromkeys((*again, "leaves-sockets"), "Unavailable"),
        "serves-old-version": "Unimplemented",
    }
    drivers.create(*(made for mutant in words for made in drivers.claimed(f"rule-{mutant}", mutant)))
    drivers.not_prepared({f"rule-{mutant}": text for mutant, text in words.items()})
    first.thaw()


@pytest.mark.plays("DRE-04")
def test_a_driver_whose_files_another_removes_is_out_of_service(drivers: RuleDrivers) -> None:
    drivers.start_correct("victim")
    drivers.published("victim")
    drivers.serve("cleans-directories")
    drivers.create(*drivers.claimed("rule-victim", "victim"))
    drivers.not_prepared({"rule-victim": _UNKNOWN})


@pytest.mark.plays("DRG-10", "DRG-11", "PRP-07", "SLC-10", "SLC-12")
async def test_a_kubelet_that_is_restarted(drivers: RuleDrivers, cluster: Cluster) -> None:
    mutants = ("registers-once", "dies-of-closed-connection", "refuses-second-call", "on-all-nodes", "publishes-once")
    drivers.serve(*mutants)
    drivers.create(*drivers.claimed("rule-second-call", "refuses-second-call"))
    drivers.run(["rule-second-call"])
    async with registration.connect_watched(_registration(cluster, "registers-once")) as client:
        await client.announce(5)
    drivers.processes["on-all-nodes"].stop()
    cluster.restart("kubelet")
    until("it has died", lambda: not drivers.processes["dies-of-closed-connection"].alive)
    until("they are gone", lambda: not drivers.slices("publishes-once"))
    until("one is published again", lambda: len(drivers.slices("registers-once")) == 2)
    again = drivers.processes["refuses-second-call"]
    until("another is registered again", lambda: len(again.lines("registered")) > 1)
    assert len(drivers.slices("on-all-nodes")) == 2
    drivers.create(
        *drivers.claimed("rule-registers-once", "registers-once"),
        *drivers.claimed("rule-on-all-nodes", "on-all-nodes"),
        *drivers.claimed("rule-publishes-once", "publishes-once"),
    )
    cluster.end_containers()
    drivers.not_prepared(
        {
            "rule-registers-once": _UNKNOWN,
            "rule-on-all-nodes": _UNKNOWN,
            "rule-second-call": "it is prepared already",
        }
    )
    drivers.not_scheduled({"rule-publishes-once": "0/1 nodes are available"})


@pytest.mark.full("a reboot of the node")
@pytest.mark.plays("DST-03")
def test_a_node_that_reboots(drivers: RuleDrivers, cluster: Cluster) -> None:
    drivers.serve("trusts-checkpoint")
    drivers.start_correct("writes-again")
    drivers.published("writes-again")
    names = {"trusts-checkpoint": "rule-trusts", "writes-again": "rule-writes"}
    drivers.create(*(made for mutant, name in names.items() for made in drivers.claimed(name, mutant)))
    drivers.run(names.values())
    before = drivers.read("rule-writes").containers()
    drivers.kill(*names)
    with cluster.rebooting():
        drivers.start("trusts-checkpoint")
        drivers.start_correct("writes-again")
    drivers.not_created(["rule-trusts"])
    until("the other runs again", lambda: drivers.read("rule-writes").containers() != before)
    drivers.run(["rule-writes"])


@pytest.mark.full("the kubelet gives up a call after 45 s")
@pytest.mark.plays("PRP-18")
def test_a_driver_that_takes_its_time(drivers: RuleDrivers) -> None:
    drivers.serve("takes-its-time")
    drivers.processes["takes-its-time"].freeze()
    drivers.create(*drivers.claimed("rule-takes-its-time", "takes-its-time"))
    drivers.not_prepared({"rule-takes-its-time": "DeadlineExceeded"}, limit=90)
    drivers.processes["takes-its-time"].thaw()


def _unregistrations(drivers: RuleDrivers, mutant: str) -> int:
    """How often the kubelet has taken the driver from its list, which it does once a second."""
    lines = drivers.cluster.kubelet.lines(f"{RuleDrivers.driver(mutant)}-reg.sock")
    return sum("UnregisterPlugin" in line for line in lines)


def _registration(cluster: Cluster, mutant: str) -> Path:
    return cluster.kubelet_dir / "plugins_registry" / f"{RuleDrivers.driver(mutant)}-reg.sock"
