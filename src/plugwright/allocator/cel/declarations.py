"""The functions of Kubernetes' CEL environment for device selectors, and their overloads.

One table in a compact notation: `size: string.() int; (string) int` declares a method and a function. `C` stands
for every comparable type, `S` for every type with a sum; other capital letters are type parameters.
"""

import re
from collections.abc import Callable
from functools import cache

from msgspec import Struct

from plugwright.allocator.cel import celtypes
from plugwright.allocator.cel.celtypes import Type, list_of, map_of, optional_of, parameter, type_of

__all__ = ["DEVICE_FIELDS", "TYPE_NAMES", "Overload", "device_fields", "overloads"]

_FUNCTIONS = """
!_: (bool) bool
-_: (double) double; (int) int
@in: (A, list(A)) bool; (A, map(A, B)) bool
@not_strictly_false: (bool) bool
@sortByAssociatedKeys: list(T).(list(C)) list(T)
_!=_: (A, A) bool
_==_: (A, A) bool
_&&_: (bool, bool) bool
_||_: (bool, bool) bool
_?_:_: (bool, A, A) A
_%_: (int, int) int; (uint, uint) uint
_*_: (double, double) double; (int, int) int; (uint, uint) uint
_/_: (double, double) double; (int, int) int; (uint, uint) uint
_+_: (bytes, bytes) bytes; (S, S) S; (duration, timestamp) timestamp; (list(A), list(A)) list(A); \
 (string, string) string; (timestamp, duration) timestamp
_-_: (S, S) S; (timestamp, duration) timestamp; (timestamp, timestamp) duration
_<_, _<=_, _>_, _>=_: (C, C) bool; (double, int) bool; (double, uint) bool; (int, double) bool; (int, uint) bool; \
 (uint, double) bool; (uint, int) bool
_[_]: (list(A), int) A; (map(A, B), A) B; (optional(list(V)), int) optional(V); (optional(map(K, V)), K) optional(V)
_[?_]: (list(V), int) optional(V); (map(K, V), K) optional(V); (optional(list(V)), int) optional(V); \
 (optional(map(K, V)), K) optional(V)
bool: (bool) bool; (string) bool
bytes: (bytes) bytes; (string) bytes
double: (double) double; (int) double; (string) double; (uint) double
duration: (duration) duration; (string) duration
dyn: (A) dyn
int: (double) int; (duration) int; (int) int; (string) int; (timestamp) int; (uint) int
string: (bool) string; (bytes) string; (CIDR) string; (double) string; (duration) string; (int) string; (IP) string; \
 (string) string; (timestamp) string; (uint) string
timestamp: (int) timestamp; (string) timestamp; (timestamp) timestamp
type: (A) type(A)
uint: (double) uint; (int) uint; (string) uint; (uint) uint
size: bytes.() int; list(A).() int; map(A, B).() int; string.() int; (bytes) int; (list(A)) int; (map(A, B)) int; \
 (string) int
contains, startsWith, endsWith: string.(string) bool
matches: (string, string) bool; string.(string) bool
getDate, getDayOfMonth, getDayOfWeek, getDayOfYear, getFullYear, getMonth: timestamp.() int; timestamp.(string) int
getHours, getMilliseconds, getMinutes, getSeconds: duration.() int; timestamp.() int; timestamp.(string) int

cel.@mapInsert: (map(K, V), K, V) map(K, V); (map(K, V), map(K, V)) map(K, V)
optional.none: () optional(V)
optional.of, optional.ofNonZeroValue: (V) optional(V)
optional.unwrap: (list(optional(V))) list(V)
unwrapOpt: list(optional(V)).() list(V)
hasValue: optional(V).() bool
or: optional(V).(optional(V)) optional(V)
orValue: optional(V).(V) V
value: optional(V).() V

charAt: string.(int) string
find: string.(string) string
findAll: string.(string) list(string); string.(string, int) list(string)
format: string.(list(dyn)) string
indexOf, lastIndexOf: list(A).(A) int; string.(string) int; string.(string, int) int
join: list(string).() string; list(string).(string) string
lowerAscii, upperAscii, trim: string.() string
replace: string.(string, string) string; string.(string, string, int) string
split: string.(string) list(string); string.(string, int) list(string)
strings.quote: (string) string
substring: string.(int) string; string.(int, int) string

distinct, reverse: list(T).() list(T)
first, last: list(V).() optional(V)
flatten: list(list(T)).() list(T); list(dyn).(int) list(dyn)
isSorted: list(C).() bool
lists.range: (int) list(int)
max, min: list(C).() C
slice: list(T).(int, int) list(T)
sort: list(C).() list(C)
sum: list(S).() S
sets.contains, sets.equivalent, sets.intersects: (list(T), list(T)) bool

add, sub: Quantity.(Quantity) Quantity; Quantity.(int) Quantity
asApproximateFloat: Quantity.() double
asInteger: Quantity.() int
compareTo: Quantity.(Quantity) int; Semver.(Semver) int
isGreaterThan, isLessThan: Quantity.(Quantity) bool; Semver.(Semver) bool
isInteger: Quantity.() bool
isQuantity: (string) bool
quantity: (string) Quantity
sign: (Quantity) int
isSemver: (string) bool; (string, bool) bool
major, minor, patch: Semver.() int
semver: (string, bool) Semver; (string) Semver

cidr: (string) CIDR
containsCIDR: CIDR.(CIDR) bool; CIDR.(string) bool
containsIP: CIDR.(IP) bool; CIDR.(string) bool
family: IP.() int
ip: CIDR.() IP; (string) IP
ip.isCanonical, isCIDR, isIP, isURL: (string) bool
isGlobalUnicast, isLinkLocalMulticast, isLinkLocalUnicast, isLoopback, isUnspecified: IP.() bool
masked: CIDR.() CIDR
prefixLength: CIDR.() int
getEscapedPath, getHost, getHostname, getPort, getScheme: URL.() string
getQuery: URL.() map(string, list(string))
url: (string) URL
format.byte, format.date, format.datetime, format.dns1035Label, format.dns1035LabelPrefix, format.dns1123Label, \
 format.dns1123LabelPrefix, format.dns1123Subdomain, format.dns1123SubdomainPrefix, format.labelValue, \
 format.qualifiedName, format.uri, format.uuid: () Format
format.named: (string) optional(Format)
validate: Format.(string) optional(list(string))

allowed, errored: Decision.() bool
error, reason: Decision.() string
check: PathCheck.(string) Decision; ResourceCheck.(string) Decision
fieldSelector, labelSelector, name, namespace, subresource: ResourceCheck.(string) ResourceCheck
group: Authorizer.(string) GroupCheck
path: Authorizer.(string) PathCheck
resource: GroupCheck.(string) ResourceCheck
serviceAccount: Authorizer.(string, string) Authorizer
"""
_STORED = "includes: dyn.(dyn) bool"

# In upstream's order: of an empty list, the first is assumed.
_COMPARABLE = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_SUMMABLE = ("int", "uint", "double", "duration")

_SIMPLE = {
    each.kind: each
    for each in (
        celtypes.BOOL,
        celtypes.BYTES,
        celtypes.DOUBLE,
        celtypes.DURATION,
        celtypes.DYN,
        celtypes.INT,
        celtypes.STRING,
        celtypes.TIMESTAMP,
        celtypes.UINT,
    )
}
_SIMPLE |= {name: Type("struct", f"kubernetes.{name}") for name in ("Quantity", "Semver", "URL")}
_SIMPLE |= {"Format": Type("struct", "kubernetes.NamedFormat")}
_SIMPLE |= {name: Type("opaque", f"net.{name}") for name in ("IP", "CIDR")}
_AUTHORIZATION = ("Authorizer", "Decision", "GroupCheck", "PathCheck", "ResourceCheck")
_SIMPLE |= {name: Type("struct", f"kubernetes.authorization.{name}") for name in _AUTHORIZATION}

_DYN_LIST, _DYN_MAP = list_of(celtypes.DYN), map_of(celtypes.DYN, celtypes.DYN)
_NAMED = [_SIMPLE[each] for each in _COMPARABLE] + [celtypes.NULL, _SIMPLE["IP"], _SIMPLE["CIDR"], _DYN_LIST, _DYN_MAP]
_NAMED += [_SIMPLE[each] for each in ("Quantity", "Semver", "URL", "Format")]
TYPE_NAMES = {each.name: type_of(each) for each in _NAMED}
TYPE_NAMES |= {"type": type_of(Type("type", "type")), "optional_type": type_of(optional_of(celtypes.DYN))}


class Overload(Struct, frozen=True):
    """One signature of a function; a method has its target as first argument."""

    method: bool
    arguments: tuple[Type, ...]
    result: Type


def device_fields(*, stored: bool) -> dict[str, Type]:
    """The fields of `device`. Stored expressions can have lists in attributes, so these have the type dyn."""
    attribute = celtypes.DYN if stored else celtypes.ANY
    return {**DEVICE_FIELDS, "attributes": map_of(celtypes.STRING, map_of(celtypes.STRING, attribute))}


DEVICE_FIELDS = {
    "driver": celtypes.STRING,
    "allowMultipleAllocations": celtypes.BOOL,
    "capacity": map_of(celtypes.STRING, map_of(celtypes.STRING, _SIMPLE["Quantity"])),
}

_MAKERS: dict[str, Callable[..., Type]] = {"list": list_of, "map": map_of, "optional": optional_of, "type": type_of}


@cache
def overloads(*, stored: bool) -> dict[str, list[Overload]]:
    """Every function by name."""
    table: dict[str, list[Overload]] = {}
    for line in (_FUNCTIONS.replace("\\\n", "") + (_STORED if stored else "")).splitlines():
        names, _, signatures = line.rpartition(": ")
        for name in filter(None, names.split(", ")):
            table[name.strip()] = [each for text in signatures.split("; ") for each in _expanded(text.strip())]
    return table


def _expanded(signature: str) -> list[Overload]:
    """One overload for every type a template letter stands for."""
    for letter, types in (("C", _COMPARABLE), ("S", _SUMMABLE)):
        pattern = re.compile(rf"\b{letter}\b")
        if pattern.search(signature):
            return [_overload(pattern.sub(each, signature)) for each in types]
    return [_overload(signature)]


def _overload(signature: str) -> Overload:
    match = re.fullmatch(r"(?:(?P<target>[^.]+)\.)?\((?P<arguments>.*)\) (?P<result>[^ ].*)", signature)
    assert match is not None, signature
    target = [_parsed(match["target"])] if match["target"] else []
    arguments = tuple(target + [_parsed(each) for each in _split(match["arguments"])])
    return Overload(bool(target), arguments, _parsed(match["result"]))


def _split(text: str) -> list[str]:
    """Split at the commas outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _parsed(text: str) -> Type:
    name, _, inner = text.partition("(")
    if inner:
        makers: dict[str, Callable[..., Type]] = {
            "list": list_of,
            "map": map_of,
            "optional": optional_of,
            "type": type_of,
        }
        return makers[name](*(_parsed(each) for each in _split(inner.removesuffix(")"))))
    return _SIMPLE.get(text) or parameter(text)
