"""Rules of the opaque parameters in a claim for the driver."""

from collections.abc import Mapping, Sequence

from plugwright.conformance.asking import expect
from plugwright.conformance.dra.claim_calls import (
    REQUEST,
    ClaimAllocation,
    allocated,
    prepare,
    prepared,
    some_devices,
)
from plugwright.conformance.dra.driver_session import DriverSession, RegisteredDriver
from plugwright.conformance.dra.driver_verifier import DriverRule, DriverVerifier
from plugwright.conformance.rule import Level, Rule
from plugwright.conformance.verifier import Verifier
from plugwright.errors import PeerGone, PeerRefused, PrerequisiteBroken, RuleNotApplicable
from plugwright.model import some

__all__ = ["RULES"]

Parameters = Mapping[str, object]
_UNKNOWN: Mapping[str, Parameters] = {
    "of an unknown kind": {"apiVersion": "plugwright.dev/v1", "kind": "NoSuchKind"},
    "of an unknown version": {"apiVersion": "plugwright.dev/v99beta99", "kind": "Config", "mode": "fast"},
}
_HOSTILE: Mapping[str, Parameters] = {
    "without anything": {},
    "with values of other types": {"apiVersion": 1, "kind": ["Config"], "mode": {"a": None}, "sharing": "yes"},
    "with nulls": {"apiVersion": None, "kind": None, "spec": None},
    "with large numbers": {"apiVersion": "plugwright.dev/v1", "kind": "Config", "replicas": -(2**62), "share": 1e308},
    "with a path": {"apiVersion": "../../etc/passwd", "kind": "../../../tmp/plugwright", "mode": "\n\u0000'\"$(id)"},
    "of 9 KiB": {"apiVersion": "plugwright.dev/v1", "kind": "Config", "text": "x" * 9216},
    "with deep nesting": {"apiVersion": "plugwright.dev/v1", "kind": "Config", "spec": {"a": [[[[[{"b": [[{}]]}]]]]]}},
}


def _config(driver: str, parameters: Parameters, source: str = "FromClaim") -> dict[str, object]:
    return {"source": source, "requests": [], "opaque": {"driver": driver, "parameters": dict(parameters)}}


async def _outcome(session: DriverSession, driver: RegisteredDriver, config: Sequence[Mapping[str, object]]) -> str:
    """The error for a claim with these parameters; empty if it is prepared."""
    async with allocated(session, driver, ClaimAllocation(some_devices(session, driver), config=config)) as [claim]:
        try:
            result = (await prepare(session, driver, claim)).get(claim.uid)
        except PeerRefused as error:
            return str(error)
    if result is None:
        return "no entry for the claim"
    return result if isinstance(result, str) else ""


def _unknown(session: DriverSession) -> Mapping[str, Parameters]:
    """Parameters that no driver knows; if some are given, also with their own kind in another version."""
    given = session.parameters or {}
    group, _, version = str(given.get("apiVersion") or "").rpartition("/")
    if not version:
        return _UNKNOWN
    later = f"{group}/v99beta99" if group else "v99beta99"
    return {**_UNKNOWN, "of their own kind in an unknown version": {**given, "apiVersion": later}}


def _hostile(session: DriverSession) -> Mapping[str, Parameters]:
    """Parameters as a careless or hostile user writes them; also given ones, with other values."""
    given = session.parameters
    if given is None:
        return _HOSTILE
    fields = {name: value for name, value in given.items() if name not in ("apiVersion", "kind")}
    own = {name: value for name, value in given.items() if name not in fields}
    changed = {
        "of their own kind without anything else": own,
        "of their own kind with nulls": {**own, **dict.fromkeys(fields)},
        "of their own kind with other types": {**own, **{name: _other_type(value) for name, value in fields.items()}},
        "of their own kind with extreme values": {**own, **{name: _extreme(value) for name, value in fields.items()}},
    }
    return {**_HOSTILE, **(changed if fields else {})}


def _other_type(value: object) -> object:
    return {"a": [None]} if isinstance(value, str | int | float) else "text"


def _extreme(value: object) -> object:
    """A value of the same type that few programs expect."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return -1
    if isinstance(value, str):
        return "../" * 100 + "x" * 4096
    if isinstance(value, dict):
        return {name: _extreme(one) for name, one in value.items()}
    return []


async def accepted_parameters(verifier: Verifier) -> dict[str, str]:
    """The outcome for each kind of parameters; a broken connection is a finding of PAR-02."""
    assert isinstance(verifier, DriverVerifier)
    session, [driver, *_] = await verifier.drivers()
    found = {}
    for which, parameters in {**_unknown(session), **_hostile(session)}.items():
        try:
            found[which] = await _outcome(session, driver, [_config(driver.name, parameters)])
        except PeerGone as error:
            raise PrerequisiteBroken("PAR-02", f"an answer for a claim with parameters {which}", str(error)) from None
    return found


class RefusesUnknownParameters(DriverRule):
    id, level = "PAR-01", Level.MUST
    title = "Parameters of an unknown kind or version are refused, if the driver takes any"
    why = "The pod runs without a property that its owner requested, such as exclusive use, and nothing reports it."
    fix = "Decode strictly: refuse a kind, a version or a field that you do not know, and name it in the error."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        outcomes = await verifier.remembered(accepted_parameters)
        if not any(outcomes.values()):
            raise RuleNotApplicable("the driver does not look at parameters: PAR-03")
        session, _ = await verifier.drivers()
        accepted = [which for which in _unknown(session) if not outcomes[which]]
        expect(not accepted, "an error for parameters that the driver does not know", f"devices for those {accepted}")


class SurvivesHostileParameters(DriverRule):
    id, level = "PAR-02", Level.MUST
    title = "Parameters with any content are answered, and the device is free afterwards"
    why = "Any user who can create a claim writes them: one claim could end the driver, or cost the node a device."
    fix = "Check types before you use them, return an error for the claim, and release everything."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        for driver in drivers:
            for which, parameters in {**_hostile(session), **_unknown(session)}.items():
                for config in self._configs(driver.name, parameters):
                    await self._check(session, driver, which, config)
                expect(session.ending.startswith("it runs") or verifier.target.attached, "it runs on", session.ending)
                async with allocated(session, driver, ClaimAllocation(some_devices(session, driver))) as [claim]:
                    await prepared(session, driver, claim)

    @staticmethod
    def _configs(driver: str, parameters: Parameters) -> list[list[dict[str, object]]]:
        own = _config(driver, parameters)
        return [[own], [_config(driver, parameters, "FromClass"), own], [{**own, "requests": ["verified"]}]]

    @staticmethod
    async def _check(
        session: DriverSession, driver: RegisteredDriver, which: str, config: Sequence[Mapping[str, object]]
    ) -> None:
        allocation = ClaimAllocation(some_devices(session, driver), config=config)
        async with allocated(session, driver, allocation) as [claim]:
            try:
                answer = await prepare(session, driver, claim)
            except PeerRefused as error:
                seen = f"the whole call fails: {error}"
                expect("panic" not in seen.lower(), f"an entry for a claim with parameters {which}", seen)
                return
            except (PeerGone, TimeoutError) as error:
                expect(False, f"an answer for a claim with parameters {which}", f"{error}; {session.ending}")
                return
            expect(claim.uid in answer, f"an entry for a claim with parameters {which}", "none")


class ReadsParameters(DriverRule):
    id, level = "PAR-03", Level.SHOULD
    title = "A driver without parameters refuses claims that contain parameters for it"
    why = (
        "Their owner expects them to take effect; an error reports the mistake before the pod runs for days "
        "without them."
    )
    fix = "Return an error for a config entry with the driver's own name, if the driver takes no parameters."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        outcomes = await verifier.remembered(accepted_parameters)
        expect(any(outcomes.values()), "an error", "devices for a claim with any parameters")


class TakesValidParameters(DriverRule):
    id, level = "PAR-04", Level.MUST
    title = "Valid parameters are taken from a class as well as from a claim, for all requests or for one"
    why = "Administrators set defaults in a DeviceClass; a driver that reads only the claim ignores them."
    fix = "Apply all entries for your driver in order; requests is empty for all, and a later entry wins."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        parameters = _given(session)
        for driver in drivers:
            own = _config(driver.name, parameters)
            from_class = _config(driver.name, parameters, "FromClass")
            for config in ([], [from_class], [{**own, "requests": [REQUEST]}], [from_class, own]):
                refused = await _outcome(session, driver, config)
                which = some([f"{one['source']} for {one['requests'] or 'all requests'}" for one in config])
                expect(not refused, f"devices for a claim with {which or 'its parameters'}", f"the error {refused!r}")


class RefusesUnknownFields(DriverRule):
    id, level = "PAR-05", Level.SHOULD
    title = "Parameters with a field that the driver does not know are refused"
    why = "Otherwise a misspelt field is dropped silently: the pod runs without a property that its owner requested."
    fix = "Decode strictly, and name the field in the error."

    async def check_driver(self, verifier: DriverVerifier) -> None:
        session, drivers = await verifier.drivers()
        parameters = {**_given(session), "plugwrightVerify": "no such field"}
        for driver in drivers:
            refused = await _outcome(session, driver, [_config(driver.name, parameters)])
            expect(refused, "an error that names the field plugwrightVerify", "devices for the claim")


def _given(session: DriverSession) -> Parameters:
    if session.parameters is None:
        raise RuleNotApplicable("needs --parameters, with parameters of this driver")
    return session.parameters


RULES: tuple[type[Rule], ...] = (
    SurvivesHostileParameters,  # first: parameters that end the driver are its finding
    RefusesUnknownParameters,
    ReadsParameters,
    TakesValidParameters,
    RefusesUnknownFields,
)
