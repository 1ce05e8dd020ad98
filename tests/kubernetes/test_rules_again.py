"""Rules of `plugwright verify` about kubelets that go and come, and sockets that are gone: what a real node shows."""

import signal
from contextlib import ExitStack

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import Node
from tests.kubernetes.pods import Pods, refusal
from tests.kubernetes.rule_plugins import have, held, logged, marked, refused, resource, started
from tests.kubernetes.serving import Plugins
from tests.kubernetes.waiting import until


@pytest.mark.plays("REG-11", "REG-15", "REG-16", "REG-17", "HOT-08", "FLT-11", "FLT-13")
def test_a_kubelet_is_killed_and_gone_for_a_while(plugins: Plugins, pods: Pods, cluster: Cluster) -> None:
    mutants = ("comes-back-late", "comes-back-three-times", "looks-only-while-serving", "leaks-cut-allocate")
    processes = started(plugins, *mutants)
    processes["correct"] = plugins.mutant("", resource("correct"))
    for name, mutant in {"heeds-its-socket": "", "ignores-its-socket": "ignores-its-socket"}.items():
        processes[name] = plugins.mutant(mutant, resource(name), "--misses-kubelet")
    have(cluster, dict.fromkeys(processes, (5, 4)))
    with held(pods, cluster, "allocate", {"leaks-cut-allocate": processes["leaks-cut-allocate"]}):
        with marked(cluster, "hold-options-gives-up-when-cut", "hold-options-tries-when-cut"):
            cut = started(plugins, "gives-up-when-cut")
            cut["tries-when-cut"] = plugins.mutant("", resource("tries-when-cut"))
            logged(cut, "held: options")
            processes["comes-back-late"].freeze()
            cluster.stop("kubelet", signal.SIGKILL)
        with marked(cluster, "fail-part-3"):
            early = pods.create("before-its-plugin", {resource("comes-back-late"): 1})
            until("it is bound", lambda: early.read()["spec"].get("nodeName"))
            gone = plugins.mutant("ends-without-kubelet", resource("ends-without-kubelet"))
            until("it has ended", lambda: not gone.alive)
            counting = processes["comes-back-three-times"]
            until("it has tried three times", lambda: len(counting.lines()) >= 3, last=counting.lines)
            cluster.start("kubelet")
            refused(pods, {"before-its-plugin": "UnexpectedAdmissionError"})
            processes["comes-back-late"].thaw()
            back = ("correct", "comes-back-late", "heeds-its-socket", "tries-when-cut", "leaks-cut-allocate")
            lost = dict.fromkeys(("comes-back-three-times", "ignores-its-socket"), (0, 0))
            none = dict.fromkeys(("ends-without-kubelet", "gives-up-when-cut"))
            have(cluster, {**dict.fromkeys(back, (5, 3)), **lost, **none, "looks-only-while-serving": (5, 4)})
    assert refusal(early.read()), "it was refused for good"
    pods.create("after-cut-allocate", {resource("leaks-cut-allocate"): 1})
    refused(pods, {"after-cut-allocate": "in use"})


@pytest.mark.plays("LST-07", "LST-11", "ALO-05", "FLT-12")
def test_a_kubelet_is_killed_crashes_and_aligns_devices(
    plugins: Plugins, pods: Pods, cluster: Cluster, node: Node
) -> None:
    mutants = ("negative-numa-node", "stream-held-by-dead", "leaks-cut-preference", "allocates-unknown")
    processes = started(plugins, *mutants)
    processes["correct"] = plugins.mutant("", resource("correct"))
    have(cluster, dict.fromkeys(processes, (5, 4)))
    with held(pods, cluster, "prefer", {"leaks-cut-preference": processes["leaks-cut-preference"]}):
        cluster.stop("kubelet", signal.SIGKILL)
        with marked(cluster, "fail-part-3"), cluster.kubelet_settings(topologyManagerPolicy="single-numa-node"):
            back = dict.fromkeys(("correct", "negative-numa-node", "leaks-cut-preference"), (5, 3))
            have(cluster, {**back, "allocates-unknown": (4, 3)})
            pods.create("suits-no-node", {resource("negative-numa-node"): 1})
            pods.create("after-cut-preference", {resource("leaks-cut-preference"): 1})
            aligned = pods.create("suits-a-node", {resource("correct"): 1})
            refused(pods, {"suits-no-node": "TopologyAffinityError", "after-cut-preference": "busy"})
            aligned.runs()
            with ExitStack() as failing:
                with held(pods, cluster, "allocate", {"allocates-unknown": processes["allocates-unknown"]}):
                    failing.enter_context(marked(cluster, "fail-part-0"))
                    have(cluster, {"allocates-unknown": (3, 2)})
                until("it has crashed", lambda: not cluster.kubelet.alive)
            assert node.panics()
    have(cluster, {"correct": (5, 4), "stream-held-by-dead": (0, 0)})


@pytest.mark.essential
@pytest.mark.plays("REG-05", "REG-12", "REG-21", "END-06", "END-07")
def test_plugins_that_are_refused_cut_off_or_cannot_be_dialled(
    plugins: Plugins, pods: Pods, cluster: Cluster, node: Node
) -> None:
    with marked(cluster, "refuse-options"):
        refusals = started(plugins, "gives-up-when-refused")
        refusals["tries-again"] = plugins.mutant("", resource("tries-again"))
        logged(refusals, "failed to get device plugin options")
    silent = started(plugins, "registers-first")
    old = plugins.mutant("removes-successors-socket", resource("upgraded"))
    plugins.mutant("ignores-its-socket", resource("keeps-its-connection"))
    plugins.mutant("ignores-lost-stream", resource("ignores-lost-stream"), "--watched")
    plugins.mutant("", resource("heeds-lost-stream"), "--watched")
    served = ("tries-again", "upgraded", "keeps-its-connection", "ignores-lost-stream", "heeds-lost-stream")
    have(cluster, {**dict.fromkeys(served, (5, 4)), "gives-up-when-refused": None})

    new = plugins.mutant("removes-successors-socket", resource("upgraded"))
    until("it is answered", lambda: new.lines("connected"), last=new.lines)  # or `already connected`, from 1.37 on
    old.stop()
    asked = len(node.registration_requests(resource("tries-again")))
    with marked(cluster, "hold-register-interrupted"):
        silent["interrupted"] = plugins.mutant("", resource("interrupted"))
        logged({"interrupted": silent["interrupted"]}, "held: register")
        started(plugins, "cleans-directory")
        have(cluster, {"cleans-directory": (5, 4)})
    for path in (cluster.kubelet_dir / "plugins_registry").glob("part-*.sock"):
        path.unlink(missing_ok=True)
    have(cluster, {"ignores-lost-stream": (5, 0), "heeds-lost-stream": (5, 4), "keeps-its-connection": (5, 4)})
    pods.create("still-connected", {resource("keeps-its-connection"): 1}).runs()
    until("it asks again", lambda: len(node.registration_requests(resource("tries-again"))) > asked)
    logged({**silent, "upgraded": new}, "failed to dial device plugin")
    have(cluster, {"interrupted": (5, 4), "registers-first": None})
    if cluster.version.startswith("1.36"):  # 1.37 may go on offering the devices of a socket that it has refused
        have(cluster, {"upgraded": (5, 0)})
