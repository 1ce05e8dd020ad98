"""The functions Kubernetes adds: quantities, versions, addresses, URLs and named formats."""

import base64
import ipaddress
import re
import urllib.parse
from collections.abc import Callable
from decimal import Decimal

from plugwright.allocator.cel.cel_values import (
    ABSENT,
    Cidr,
    EvaluationError,
    Format,
    Ip,
    Optional,
    Quantity,
    Semver,
    Url,
    parse_quantity,
    parse_semver,
)
from plugwright.allocator.cel.dispatch import function
from plugwright.allocator.cel.time_functions import parse_timestamp

__all__: list[str] = []


def _accepted(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        try:
            parse(text)
        except EvaluationError:
            return False
        return True

    return accepts


def _sign(left: object, right: object) -> int:
    return (left > right) - (left < right)  # type: ignore[operator,no-any-return]


@function("asInteger", Quantity)
def _as_integer(value: Quantity) -> int:
    if not _is_integer(value):
        raise EvaluationError("cannot convert value to integer")
    return int(value.amount)


@function("isInteger", Quantity)
def _is_integer(value: Quantity) -> bool:
    return value.amount == value.amount.to_integral_value() and -(1 << 63) <= value.amount < 1 << 63


def _semver_relaxed(text: str, relaxed: bool) -> Semver:
    if not relaxed:
        return parse_semver(text)
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[index] = stripped if stripped[:1].isdigit() else f"0{stripped}"
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise EvaluationError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return parse_semver(".".join(parts))


function("quantity", str)(parse_quantity)
function("isQuantity", str)(_accepted(parse_quantity))
function("sign", Quantity)(lambda value: _sign(value.amount, 0))
function("isGreaterThan", Quantity, Quantity)(lambda a, b: a.amount > b.amount)
function("isLessThan", Quantity, Quantity)(lambda a, b: a.amount < b.amount)
function("compareTo", Quantity, Quantity)(lambda a, b: _sign(a.amount, b.amount))
function("asApproximateFloat", Quantity)(lambda value: float(value.amount))
function("add", Quantity, Quantity)(lambda a, b: Quantity(a.amount + b.amount, computed=True))
function("sub", Quantity, Quantity)(lambda a, b: Quantity(a.amount - b.amount, computed=True))
function("add", Quantity, int)(lambda a, b: Quantity(a.amount + Decimal(b), computed=True))
function("sub", Quantity, int)(lambda a, b: Quantity(a.amount - Decimal(b), computed=True))
function("semver", str)(parse_semver)
function("semver", str, bool)(_semver_relaxed)
function("isSemver", str)(_accepted(parse_semver))
function("isSemver", str, bool)(lambda text, relaxed: _accepted(lambda each: _semver_relaxed(each, relaxed))(text))
function("isGreaterThan", Semver, Semver)(lambda a, b: a.key() > b.key())
function("isLessThan", Semver, Semver)(lambda a, b: a.key() < b.key())
function("compareTo", Semver, Semver)(lambda a, b: _sign(a.key(), b.key()))
function("major", Semver)(lambda value: value.numbers[0])
function("minor", Semver)(lambda value: value.numbers[1])
function("patch", Semver)(lambda value: value.numbers[2])


@function("ip", str)
def _ip(text: str) -> Ip:
    failed = "IP Address parse error during conversion from string"
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise EvaluationError(f'{failed}: ParseAddr("{text[:100]}"): unable to parse IP') from None
    if "%" in text:
        raise EvaluationError(f'{failed}: IP address "{text[:100]}" with zone value is not allowed')
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        raise EvaluationError(f'{failed}: IPv4-mapped IPv6 address "{text[:100]}" is not allowed')
    return Ip(address)


@function("cidr", str)
def _cidr(text: str) -> Cidr:
    address, slash, bits = text.partition("/")
    try:
        if not slash or not bits.isdigit() or (len(bits) > 1 and bits[0] == "0"):
            raise ValueError(text)
        return Cidr(ipaddress.ip_interface(f"{_ip(address).address}/{bits}"))
    except ValueError:
        raise EvaluationError("network address parse error during conversion from string") from None


def _contains_ip(cidr: Cidr, ip: Ip) -> bool:
    return ip.address.version == cidr.interface.version and ip.address in cidr.interface.network


def _contains_cidr(cidr: Cidr, other: Cidr) -> bool:
    outer, inner = cidr.interface.network, other.interface.network
    return outer.version == inner.version and outer.overlaps(inner) and outer.prefixlen <= inner.prefixlen


def _global_unicast(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and address != ipaddress.ip_address("255.255.255.255")


function("isIP", str)(_accepted(_ip))
function("isCIDR", str)(_accepted(_cidr))
function("ip.isCanonical", str)(lambda text: str(_ip(text).address) == text)
function("string", Ip)(lambda ip: str(ip.address))
function("string", Cidr)(lambda cidr: str(cidr.interface))
function("family", Ip)(lambda ip: ip.address.version)
function("isUnspecified", Ip)(lambda ip: ip.address.is_unspecified)
function("isLoopback", Ip)(lambda ip: ip.address.is_loopback)
function("isLinkLocalUnicast", Ip)(lambda ip: ip.address.is_link_local)
function("isLinkLocalMulticast", Ip)(
    lambda ip: ip.address in ipaddress.ip_network("224.0.0.0/24" if ip.address.version == 4 else "ff02::/16")
)
function("isGlobalUnicast", Ip)(lambda ip: _global_unicast(ip.address))
function("containsIP", Cidr, Ip)(_contains_ip)
function("containsIP", Cidr, str)(lambda cidr, text: _contains_ip(cidr, _ip(text)))
function("containsCIDR", Cidr, Cidr)(_contains_cidr)
function("containsCIDR", Cidr, str)(lambda cidr, text: _contains_cidr(cidr, _cidr(text)))
function("ip", Cidr)(lambda cidr: Ip(cidr.interface.ip))
function("prefixLength", Cidr)(lambda cidr: cidr.interface.network.prefixlen)
function("masked", Cidr)(lambda cidr: Cidr(ipaddress.ip_interface(cidr.interface.network.with_prefixlen)))

_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:\S|/)(?:[^\x00-\x20\x7f%]|%[0-9A-Fa-f]{2}| )*")


@function("url", str)
def _url(text: str) -> Url:
    failed = f'URL parse error during conversion from string: parse "{text[:100]}"'
    try:
        parts = urllib.parse.urlsplit(text)
        valid = bool(_URL.fullmatch(text)) and " " not in parts.netloc and (parts.port is None or parts.port >= 0)
    except ValueError:
        valid = False
    if not valid:
        raise EvaluationError(f"{failed}: invalid URI for request")
    return Url(text)


def _split_url(url: Url) -> urllib.parse.SplitResult:
    return urllib.parse.urlsplit(url.text)


def _host(url: Url) -> str:
    return _split_url(url).netloc.rpartition("@")[2]


def _hostname(url: Url) -> str:
    host = _host(url)
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


function("isURL", str)(_accepted(_url))
function("getScheme", Url)(lambda url: _split_url(url).scheme)
function("getHost", Url)(_host)
function("getHostname", Url)(_hostname)
function("getPort", Url)(lambda url: _host(url).rpartition("]")[2].partition(":")[2])
function("getEscapedPath", Url)(lambda url: urllib.parse.quote(_split_url(url).path, safe="/%:@!$&'()*+,;=~-._"))
function("getQuery", Url)(lambda url: urllib.parse.parse_qs(_split_url(url).query, keep_blank_values=True))

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"
_NAME = r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_PATTERNS = {
    "dns1123Label": (63, _LABEL),
    "dns1123Subdomain": (253, _SUBDOMAIN),
    "dns1035Label": (63, r"[a-z](?:[-a-z0-9]*[a-z0-9])?"),
    "labelValue": (63, rf"(?:{_NAME})?"),
    "uuid": (36, r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"),
    "date": (10, r"\d{4}-(?:0\d|1[0-2])-[0-3]\d"),
}
_FORMATS = (*_PATTERNS, "dns1123LabelPrefix", "dns1123SubdomainPrefix", "dns1035LabelPrefix", "qualifiedName", "uri")
_FORMATS += ("byte", "datetime")


def _conforms(name: str, text: str) -> bool:
    if name.endswith("Prefix"):
        return _conforms(name.removesuffix("Prefix"), text[:-1] + "a" if text.endswith("-") else text)
    if name in _PATTERNS:
        longest, pattern = _PATTERNS[name]
        return len(text) <= longest and re.fullmatch(pattern, text, re.ASCII) is not None
    if name == "qualifiedName":
        prefix, slash, rest = text.rpartition("/")
        valid = len(rest) <= 63 and re.fullmatch(_NAME, rest, re.ASCII) is not None
        return valid and (not slash or _conforms("dns1123Subdomain", prefix))
    if name == "byte":
        return (
            bool(text)
            and len(text) % 4 == 0
            and re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", text) is not None
            and bool(base64.b64decode(text))
        )
    return _accepted(_url if name == "uri" else parse_timestamp)(text)


@function("validate", Format, str)
def _validate(named: Format, text: str) -> Optional:
    return (
        ABSENT if _conforms(named.name, text) else Optional([f"does not match the {named.name} format"], present=True)
    )


@function("format.named", str)
def _named(name: str) -> Optional:
    return Optional(Format(name), present=True) if name in _FORMATS else ABSENT


for _name in _FORMATS:
    function(f"format.{_name}")(lambda name=_name: Format(name))
