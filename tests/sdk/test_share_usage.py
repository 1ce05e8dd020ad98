"""What a plugin measures of its holders: in the NodeReport, in `status` and in the metrics."""

import json
from collections.abc import AsyncIterator, Sequence

from tests.observed_kubelet import ObservedKubelet
from tests.sdk.test_node_report import KUBELET
from tests.sdk.test_prometheus import scrape

from plugwright import Device, Plugin, Settings, serving
from plugwright.cli import status as status_page
from plugwright.sdk import daemon_status
from plugwright.sdk.holdings.holding import DeviceKey, Holding, Holdings
from plugwright.sdk.node_reporting import node_report
from plugwright.sdk.serve_settings import ServeMode
from plugwright.sdk.share_usage import HeldShare, ShareUsage, incidents, usages

SHELF = "example.com/shelf"
GIB = 2**30
KNOWN = ShareUsage(
    of="shelf", limit=4 * GIB, at=1e9, used=GIB, peak=2 * GIB, refusals=3, processes=1, driver=5 * GIB,
    driver_peak=6 * GIB, exceeded=True, incidents=2,
)  # fmt: skip


def held(device_id: str, pod: str, api: ServeMode = ServeMode.DEVICE_PLUGIN, **facts: str) -> Holding:
    key = DeviceKey(api, SHELF, device_id)
    return Holding(key=key, physical=("shelf",), namespace="default", pod=pod, pod_uid=pod, container="main", **facts)  # type: ignore[arg-type]


class MeasuredShelf(Plugin):
    """Half a shelf each; it knows what the holder of 0 and 1 uses, and the claim's part of 2."""

    resource = SHELF

    async def discover(self) -> AsyncIterator[list[Device]]:
        yield [Device(str(number), sharing="half", physical=["shelf"]) for number in range(4)]

    def usage(self, held: Sequence[HeldShare]) -> Sequence[ShareUsage]:
        known = (sorted(held) == [("0", ""), ("1", "")]) or list(held) == [("2", "part")]
        return (KNOWN,) if known else ()


HOLDINGS = Holdings((held("0", "a"), held("1", "a"), held("2", "b", share_id="part"), held("3", "b")))


def test_shares_that_were_allocated_together_have_one_usage_and_others_their_own() -> None:
    found = [
        ([holding.key.device_id for holding in holders], usage)
        for holders, usage in usages(SHELF, HOLDINGS, MeasuredShelf().usage)
    ]
    assert found == [(["0", "1"], KNOWN), (["2"], KNOWN)]


def test_an_incident_names_the_pod_or_the_claim() -> None:
    claim = held("2", "", ServeMode.DRA, share_id="part", claim="half", claim_uid="1")
    found = incidents(SHELF, Holdings((held("0", "a"), held("1", "a"), claim)), MeasuredShelf().usage)
    text = "exceeds its share now: at most 6144 of 4096 MiB of shelf"
    assert found == [f"ResourceClaim default/half {text}", f"default/a {text}"]


async def test_status_report_and_metrics_have_the_usage(kubelet: ObservedKubelet, settings: Settings) -> None:
    async with serving(MeasuredShelf(), settings=settings) as daemon:
        await kubelet.endpoint(SHELF, count=4)
        status = daemon_status.report(daemon, HOLDINGS)
        report = json.loads(json.dumps(node_report(daemon, status, HOLDINGS, KUBELET, ())))
        [resource] = report["resources"]
        usage = [[holder["usage"] for holder in device["holders"]] for device in resource["devices"]]
        assert usage[0] == usage[1] == usage[2]
        assert usage[3] == [None]
        assert usage[0] == [
            {
                "limit": 4 * GIB, "used": GIB, "peak": 2 * GIB, "refusals": 3, "processes": 1, "driver": 5 * GIB,
                "driverPeak": 6 * GIB, "exceeded": True, "incidents": 2, "measuredAt": "2001-09-09T01:46:40Z",
            }
        ]  # fmt: skip
        lines = "\n".join(status_page._lines(status, 0))
        assert "default/a exceeds its share now: at most 6144 of 4096 MiB of shelf" in lines
        daemon.ledger.latest.publish(HOLDINGS)
        samples = scrape(daemon)
        label = ("", "main", "0", "default", "shelf", "a", SHELF)
        names = (
            "limit_bytes",
            "used_bytes",
            "peak_bytes",
            "driver_bytes",
            "exceeded",
            "refusals_total",
            "incidents_total",
        )
        values = [samples[f"plugwright_share_{name}", *label] for name in names]
        assert values == [4 * GIB, GIB, 2 * GIB, 5 * GIB, 1, 3, 2]
