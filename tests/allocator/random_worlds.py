"""Random questions to the allocator: small clusters with every construct, valid as an API server would have them."""

import random
from typing import Any

__all__ = ["FEATURES", "world"]

_BINDING = "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus"
_IN_1_36 = [
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    _BINDING,
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
]
FEATURES = {"1.36": _IN_1_36, "1.37": [*_IN_1_36, "DRAFractionalCapacityRange"]}

_DRIVERS = ["a.example.com", "b.example.com"]
_NODES = ["n0", "n1"]
_SELECTORS = [
    'device.attributes["{d}"].model == "A"',
    'device.attributes["{d}"].index > 1',
    'device.capacity["{d}"].memory.compareTo(quantity("2Gi")) >= 0',
    'device.driver == "{d}" || device.allowMultipleAllocations',
    "device.allowMultipleAllocations == false",
]
_TAINTS = [("NoSchedule", "broken"), ("NoExecute", "gone"), ("None", "noted"), ("NoSchedule", "")]
_Object = dict[str, Any]


def world(seed: int, version: str) -> _Object:
    """The question of a seed."""
    return _World(random.Random(seed), version).question()


class _World:
    def __init__(self, chance: random.Random, version: str) -> None:
        self._chance, self._version = chance, version
        self._devices: list[tuple[str, _Object]] = []  # with `driver/pool`
        self._shared_counters = False

    def question(self) -> _Object:
        chance = self._chance
        slices = [slice_ for _ in range(chance.randint(2, 5)) for slice_ in self._pool()]
        taken = self._taken()
        features = FEATURES[self._version]
        if chance.random() < 0.1:  # not the only set that is ever used, but always with the capacity of incubating
            features = sorted({"DRAConsumableCapacity", *chance.sample(features, 4)})
        return {
            "version": self._version,
            "features": features,
            "node": {"metadata": {"name": "n0", "labels": {"zone": "z0", "size": "3"}}},
            "classes": [self._class(driver) for driver in _DRIVERS],
            "slices": chance.sample(slices, len(slices)),
            "claims": [self._claim(number) for number in range(chance.choice([1, 1, 1, 2]))],
            **taken,
        }

    def _some(self, share: float) -> bool:
        return self._chance.random() < share

    def _class(self, driver: str) -> _Object:
        spec: _Object = {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]}
        if self._some(0.3):
            spec["config"] = [{"opaque": {"driver": driver, "parameters": {"from": "class"}}}]
        return {"metadata": {"name": driver[0]}, "spec": spec}

    def _pool(self) -> list[_Object]:
        driver, name = self._chance.choice(_DRIVERS), f"p{self._chance.randint(0, 30)}"
        prefix = f"{driver[0]}-{name}-{self._chance.randint(0, 10**6)}"
        count = self._chance.choice([1, 1, 1, 2, 3])
        place = self._place()
        sets = [f"set{number}" for number in range(self._chance.randint(1, 2))] if self._some(0.4) else []
        slices = []
        for number in range(count):
            spec: _Object = dict(place if self._some(0.8) else self._place())
            devices = [
                self._device(driver, f"d{number}-{place}", sets, spec) for place in range(self._chance.randint(2, 6))
            ]
            spec["devices"] = devices
            self._devices += [(f"{driver}/{name}", device) for device in devices]
            slices.append(spec)
        if sets:
            counters = [self._counter_set(name) for name in sets]
            slices.append({**(place if self._some(0.9) else {"nodeName": "n1"}), "sharedCounters": counters})
            slices[-1].pop("perDeviceNodeSelection", None)
            if not slices[-1].keys() & {"nodeName", "nodeSelector", "allNodes"}:
                slices[-1]["allNodes"] = True
        return [self._slice(driver, name, f"{prefix}-{n}", spec, len(slices)) for n, spec in enumerate(slices)]

    def _slice(self, driver: str, pool: str, name: str, spec: _Object, count: int) -> _Object:
        generation = 1 if self._some(0.98) else 2
        count = count if self._some(0.98) else count + 1
        entry = {"name": pool, "generation": generation, "resourceSliceCount": count}
        return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": entry, **spec}}

    def _place(self) -> _Object:
        kind = self._chance.random()
        if kind < 0.6:
            return {"nodeName": "n0" if self._some(0.9) else "n1"}
        if kind < 0.75:
            return {"nodeSelector": self._node_selector()}
        return {"allNodes": True} if kind < 0.85 else {"perDeviceNodeSelection": True}

    def _node_selector(self) -> _Object:
        operator, values = self._chance.choice(
            [("In", ["z0", "z1"]), ("In", ["z1"]), ("NotIn", ["z1"]), ("Exists", []), ("DoesNotExist", [])]
        )
        expressions = [{"key": "zone", "operator": operator, **({"values": values} if values else {})}]
        if self._some(0.2):
            expressions.append({"key": "size", "operator": self._chance.choice(["Gt", "Lt"]), "values": ["2"]})
        term: _Object = {"matchExpressions": expressions}
        if self._some(0.1):
            term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]
        return {"nodeSelectorTerms": [term]}

    def _counter_set(self, name: str) -> _Object:
        counters = {counter: {"value": str(self._chance.randint(1, 6))} for counter in ("mem", "cores")}
        return {"name": name, "counters": counters}

    def _device(self, driver: str, name: str, sets: list[str], spec: _Object) -> _Object:
        chance = self._chance
        device: _Object = {"name": name if self._some(0.99) else "twin"}
        attributes: _Object = {}
        if self._some(0.95):
            attributes["model"] = {"string": chance.choice("AB")}
        attributes["index" if self._some(0.8) else f"{driver}/index"] = {"int": chance.randint(0, 3)}
        if self._some(0.7):
            attributes["example.com/root"] = chance.choice(
                [{"string": "r0"}, {"string": "r1"}, {"bool": True}, {"version": "1.0.0"}, {"int": 1}]
            )
        device |= {"attributes": attributes, "capacity": self._capacity()}
        if self._some(0.4):
            device["allowMultipleAllocations"] = True
        if sets and self._some(0.8):
            device["consumesCounters"] = [
                self._consumed(name) for name in chance.sample(sets, chance.randint(1, len(sets)))
            ]
        if self._some(0.2):
            effect, key = chance.choice(_TAINTS)
            device["taints"] = [{"key": key or "k", "value": chance.choice(["v", ""]), "effect": effect}]
        if spec.get("perDeviceNodeSelection"):
            selector = {"nodeSelector": self._node_selector()}
            device |= chance.choice([{"nodeName": "n0"}, {"nodeName": "n1"}, {"allNodes": True}, selector])
        if self._some(0.01):
            device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
        return device

    def _consumed(self, name: str) -> _Object:
        name = name if self._some(0.995) else "missing"
        counters = {
            counter: {"value": str(self._chance.randint(1, 4))} for counter in ("mem", "cores") if self._some(0.7)
        }
        return {"counterSet": name, "counters": counters or {"mem": {"value": "1"}}}

    def _capacity(self) -> _Object:
        capacity: _Object = {"memory": {"value": self._chance.choice(["1Gi", "4Gi", "8Gi", "4096Mi"])}}
        if self._some(0.5):
            capacity["memory"]["requestPolicy"] = self._chance.choice(
                [
                    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi", "step": "512Mi"}},
                    {"default": "1Gi", "validRange": {"min": "512Mi"}},
                    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "2Gi"}},
                    {"default": "1Gi", "validValues": ["1Gi", "2Gi", "4Gi"]},
                    {"default": "2Gi"},
                ]
            )
        if self._some(0.4):
            capacity["rate"] = {"value": self._chance.choice(["10", "4", "2500m"])}
            if self._some(0.6):
                fractions = [{"min": "100m", "step": "100m"}, {"min": "500m", "max": "3", "step": "250m"}]
                limits = self._chance.choice(
                    [{"min": "1", "step": "1"}, {"min": "1", "max": "4", "step": "3"}, *fractions]
                )
                capacity["rate"]["requestPolicy"] = {"default": limits["min"], "validRange": limits}
        return capacity

    def _taken(self) -> _Object:
        allocated: list[str] = []
        shared: list[str] = []
        used: dict[str, _Object] = {}
        for pool, device in self._devices:
            if not self._some(0.2):
                continue
            name = f"{pool}/{device['name']}"
            if not device.get("allowMultipleAllocations"):
                allocated.append(name)
                continue
            shared.append(f"{name}/share-{len(shared)}")
            if self._some(0.8):
                used[name] = {key: self._chance.choice(["1", "2Gi", "500m"]) for key in device["capacity"]}
        return {"allocated": allocated, "allocatedShared": shared, "allocatedCapacity": used}

    def _claim(self, number: int) -> _Object:
        requests = [self._request(f"r{place}") for place in range(self._chance.choice([1, 1, 1, 2]))]
        devices: _Object = {"requests": requests}
        if self._some(0.4):
            devices["constraints"] = [self._constraint(requests) for _ in range(self._chance.randint(1, 2))]
        if self._some(0.3):
            devices["config"] = [self._config(requests) for _ in range(self._chance.randint(1, 2))]
        return {
            "metadata": {"name": f"c{number}", "namespace": "default", "uid": f"uid-{number}"},
            "spec": {"devices": devices},
        }

    def _request(self, name: str) -> _Object:
        if self._some(0.25):
            subs = [self._exactly(False) | {"name": f"s{place}"} for place in range(self._chance.randint(1, 3))]
            return {"name": name, "firstAvailable": subs}
        return {"name": name, "exactly": self._exactly(True)}

    def _exactly(self, whole: bool) -> _Object:
        chance = self._chance
        driver = chance.choice(_DRIVERS)
        request: _Object = {"deviceClassName": driver[0], "allocationMode": "ExactCount", "count": 1}
        if self._some(0.12):
            request = {"deviceClassName": driver[0], "allocationMode": "All"}
        elif self._some(0.4):
            request["count"] = 20 if self._some(0.02) else chance.choice([2, 2, 2, 3])
        if self._some(0.3):
            expressions = [text.replace("{d}", driver) for text in chance.sample(_SELECTORS, chance.randint(1, 2))]
            request["selectors"] = [{"cel": {"expression": text}} for text in expressions]
        if self._some(0.3):
            request["tolerations"] = [self._toleration()]
        if self._some(0.3):
            requests = {"memory": chance.choice(["512Mi", "1Gi", "1500Mi", "3Gi"])}
            if self._some(0.3):
                requests["rate"] = chance.choice(["1", "2", "1300m", "150m"])
            request["capacity"] = {"requests": requests}
        if whole and self._some(0.08):
            request["adminAccess"] = self._some(0.8)
        return request

    def _toleration(self) -> _Object:
        operator = self._chance.choice(["Exists", "Equal"])
        toleration: _Object = {"operator": operator}
        if operator == "Equal" and self._some(0.7):
            toleration["value"] = "v"
        if self._some(0.6) or operator == "Equal":
            toleration["key"] = self._chance.choice(["broken", "gone", "k"])
        if self._some(0.5):
            toleration["effect"] = self._chance.choice(["NoSchedule", "NoExecute"])
        return toleration

    def _names(self, requests: list[_Object]) -> list[str]:
        names = [request["name"] for request in requests]
        names += [
            f"{request['name']}/{sub['name']}" for request in requests for sub in request.get("firstAvailable", ())
        ]
        return self._chance.sample(names, self._chance.randint(1, len(names)))

    def _constraint(self, requests: list[_Object]) -> _Object:
        kind = self._chance.choice(["matchAttribute", "distinctAttribute"])
        attribute = self._chance.choice(["a.example.com/model", "a.example.com/index", "example.com/root"])
        return {kind: attribute, **({"requests": self._names(requests)} if self._some(0.4) else {})}

    def _config(self, requests: list[_Object]) -> _Object:
        opaque = {"opaque": {"driver": _DRIVERS[0], "parameters": {"from": "claim"}}}
        return {**({"requests": self._names(requests)} if self._some(0.6) else {}), **opaque}
