"""What is known of the holders of a unit follows from all of its devices."""

from msgspec.structs import replace

from plugwright.dra.both.device_observations import Observations
from plugwright.dra.both.move_settings import MoveSettings
from plugwright.dra.both.states import Placement
from plugwright.dra.device_placement import DeviceState
from plugwright.sdk.serve_settings import ServeMode

TAINTED = Placement(DeviceState.TAINTED, ServeMode.DEVICE_PLUGIN)


def test_allocations_are_in_flight_until_they_are_over_for_every_device_of_a_unit() -> None:
    """The scheduler may have chosen the device whose taint it saw last."""
    now = 1000.0
    settings = replace(MoveSettings(), clock=lambda: now)
    observations, unit = Observations(settings, lambda: False), ("card", "half")
    observations.set_published({"card": True, "half": False}, dict.fromkeys(unit, TAINTED))
    now += settings.in_flight + 1
    observations.set_published({"card": True, "half": True}, dict.fromkeys(unit, TAINTED))
    assert not observations.evidence(unit).in_flight_over
    now += settings.in_flight + 1
    assert observations.evidence(unit).in_flight_over
