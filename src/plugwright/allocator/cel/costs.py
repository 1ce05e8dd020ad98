"""The estimated cost of an expression, by which an API server accepts or refuses it."""

from msgspec import Struct

from plugwright.allocator.cel.call_costs import FIXED, ONE, UNKNOWN, Operand, Range, estimate
from plugwright.allocator.cel.celtypes import Type
from plugwright.allocator.cel.syntax_tree import (
    CallNode,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
)

__all__ = ["estimated_cost"]

_LIST, _MAP = FIXED(10), FIXED(30)
_SCALAR = ("bool", "double", "duration", "int", "timestamp", "uint")
_MAXIMA = {"driver": 63, "allowMultipleAllocations": 1, "domain": 63, "name": 32, "entries": 32, "attribute": 64}
Path = tuple[str, ...]


class _Entries(Struct, frozen=True):
    """Sizes of the keys and values of a list or map literal."""

    kind: str
    keys: Range
    values: Range

    def union(self, other: "_Entries | None") -> "_Entries | None":
        if other is None:
            return None
        return _Entries(self.kind, self.keys.union(other.keys), self.values.union(other.values))


class _Local(Struct, frozen=True):
    path: Path
    size: Range | None
    entries: _Entries | None = None


def estimated_cost(root: Node) -> int:
    """The worst case, in CEL's units."""
    return _Coster().cost(root).high


class _Coster:
    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}
        self._sizes: dict[int, Range] = {}
        self._entries: dict[int, _Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    def cost(self, node: Node) -> Range:
        match node:
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case CallNode():
                return self._call(node)
            case ListNode():
                return self._list(node)
            case MapNode():
                return self._map(node)
            case Comprehension():
                return self._bind(node) if node.is_bind else self._fold(node)
        return FIXED(0)

    def _local(self, node: Node) -> _Local | None:
        found = self._locals.get(node.name) if isinstance(node, Ident) else None
        return found[-1] if found else None

    def _path(self, node: Node) -> Path:
        local = self._local(node)
        return local.path if local else self._paths.get(id(node), ())

    def _ident(self, node: Ident) -> Range:
        local = self._local(node)
        self._paths[id(node)] = local.path if local else (node.name,)
        return ONE

    def _select(self, node: Select) -> Range:
        total = self.cost(node.operand)
        if node.test:
            return total
        self._paths[id(node)] = (*self._path(node.operand), node.field)
        return total + ONE if node.operand.type.kind in ("map", "struct", "parameter") else total

    def _list(self, node: ListNode) -> Range:
        total, size = _LIST, None
        for element in node.elements:
            total += self.cost(element)
            found = self._size(element) or UNKNOWN
            size = size.union(found) if size else found
        self._entries[id(node)] = _Entries("list", ONE, size or FIXED(0))
        return total

    def _map(self, node: MapNode) -> Range:
        total = _MAP
        keys: Range | None = None
        values: Range | None = None
        for key, value, _ in node.entries:
            total += self.cost(key) + self.cost(value)
            key_size, value_size = self._size(key) or UNKNOWN, self._size(value) or UNKNOWN
            keys = keys.union(key_size) if keys else key_size
            values = values.union(value_size) if values else value_size
        self._entries[id(node)] = _Entries("map", keys or FIXED(0), values or FIXED(0))
        return total

    def _call(self, node: CallNode) -> Range:
        if node.function == "_?._":
            return self.cost(node.args[0]) + ONE
        costs = [self.cost(each) for each in node.args]
        if node.function == "dyn":
            self._copy_sizes(node, node.args[0])
            return costs[0] + ONE
        total = self.cost(node.target) if node.target else FIXED(0)
        if node.function in ("_&&_", "_||_"):
            return total + Range(costs[0].low, (costs[0] + costs[1]).high)
        if node.function == "_?_:_":
            return self._conditional(node, costs)
        for each in costs:
            total += each
        return total + self._overloads(node)

    def _conditional(self, node: CallNode, costs: list[Range]) -> Range:
        yes, no = ((self._size(each) or UNKNOWN) for each in node.args[1:])
        self._sizes[id(node)] = yes.union(no)
        entries = self._entry_sizes(node.args[1])
        united = entries.union(self._entry_sizes(node.args[2])) if entries else None
        if united:
            self._entries[id(node)] = united
        return costs[0] + costs[1].union(costs[2])

    def _overloads(self, node: CallNode) -> Range:
        """The range over all overloads the checker could not exclude."""
        nodes = ([node.target] if node.target else []) + node.args
        operands = [self._operand(each) for each in nodes]
        price: Range | None = None
        size: Range | None = None
        for overload in node.overloads:
            each, result = estimate(node.function, operands, overload.arguments)
            price = price.union(each) if price else each
            if result:
                size = size.union(result) if size else result
            if node.function == "_[_]" and overload.arguments[0].kind in ("list", "map"):
                size = self._index(node, overload.arguments[0].kind)
            size = size or self._size(node)
        if node.function == "_+_":
            self._joined_entries(node)
        if size:
            self._sizes[id(node)] = size
        return price or FIXED(0)

    def _index(self, node: CallNode, kind: str) -> Range | None:
        entries = self._entry_sizes(node.args[0])
        self._paths[id(node)] = (*self._path(node.args[0]), "@items" if kind == "list" else "@values")
        return entries.values if entries else None

    def _joined_entries(self, node: CallNode) -> None:
        first = self._entry_sizes(node.args[0])
        united = first.union(self._entry_sizes(node.args[1])) if first else None
        if united:
            self._entries[id(node)] = united

    def _operand(self, node: Node) -> Operand:
        path = self._path(node)
        element = _declared_size((*path, "@items")) if path and path[0] == "device" else None
        constant = node.value if isinstance(node, Literal) else None
        return Operand(node.type, self._size(node), element or UNKNOWN, constant)

    def _fold(self, node: Comprehension) -> Range:
        total = self.cost(node.range) + self.cost(node.start)
        self._push(node.accumulator, self._local_of(node.start))
        for name, local in self._iterated(node):
            self._push(name, local)
        per_element = self.cost(node.condition) + self.cost(node.step)
        self._locals[node.variable].pop()
        if node.second:
            self._locals[node.second].pop()
        total += self.cost(node.result)
        self._locals[node.accumulator].pop()
        count = self._size(node.range) or UNKNOWN
        if isinstance(node.start, Literal):
            start = self._size(node.start)
            if start:
                self._sizes[id(node)] = start
        else:
            self._sizes[id(node)] = count
            entries = self._entry_sizes(node.step)
            if entries:
                self._entries[id(node)] = entries
        return total + count * per_element

    def _iterated(self, node: Comprehension) -> list[tuple[str, _Local]]:
        entries, path = self._entry_sizes(node.range), self._path(node.range)
        is_list = (entries.kind if entries else node.range.type.kind) == "list"
        keys = _Local((*path, "@indices" if is_list else "@keys"), entries.keys if entries else None)
        values = _Local((*path, "@items" if is_list else "@values"), entries.values if entries else None)
        if node.second:
            # Upstream appends to one slice twice, which overwrites the first if Go has left room in it.
            shown = values.path if len(path) & (len(path) - 1) else keys.path
            return [(node.variable, _Local(shown, keys.size)), (node.second, values)]
        return [(node.variable, values if is_list else _Local((*path, "@keys"), keys.size))]

    def _bind(self, node: Comprehension) -> Range:
        total = _LIST + self.cost(node.start)
        self._push(node.accumulator, self._local_of(node.start))
        total += self.cost(node.result)
        self._copy_sizes(node, node.result)
        self._locals[node.accumulator].pop()
        return total

    def _local_of(self, node: Node) -> _Local:
        return _Local(self._path(node), self._size(node), self._entry_sizes(node))

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _copy_sizes(self, target: Node, source: Node) -> None:
        size, entries = self._size(source), self._entry_sizes(source)
        if size:
            self._sizes[id(target)] = size
        if entries:
            self._entries[id(target)] = entries

    def _entry_sizes(self, node: Node) -> _Entries | None:
        found = self._entries.get(id(node))
        local = self._local(node)
        return found or (local.entries if local else None)

    def _size(self, node: Node) -> Range | None:
        known = self._sizes.get(id(node)) or _literal_size(node)
        if known:
            return known
        path = self._path(node)
        declared = _declared_size(path) if path and path[0] == "device" else None
        if declared:
            self._sizes[id(node)] = declared
            return declared
        if _scalar(node.type):
            return ONE
        local = self._local(node)
        return local.size if local else None


def _scalar(kind: Type) -> bool:
    return kind.kind in _SCALAR or (kind.name == "optional_type" and _scalar(kind.parameters[0]))


def _literal_size(node: Node) -> Range | None:
    if isinstance(node, ListNode):
        return FIXED(len(node.elements))
    if isinstance(node, MapNode):
        return FIXED(len(node.entries))
    if isinstance(node, Literal):
        return FIXED(len(node.value)) if isinstance(node.value, (str, bytes)) else ONE
    return None


def _declared_size(path: Path) -> Range | None:
    """The maximum that the API sets for a part of a device."""
    if path == ("device",):
        return Range(0, 0)
    names = path[1:]
    if len(names) == 1:
        most = _MAXIMA.get(names[0], _MAXIMA["entries"] if names[0] in ("attributes", "capacity") else 0)
        return Range(0, most) if most else None
    if names[0] not in ("attributes", "capacity"):
        return None
    if names[1] == "@keys":
        return Range(0, _MAXIMA["domain"]) if len(names) == 2 else None
    if names[1] not in ("@values", "@items"):
        return None
    if len(names) == 2:
        return Range(0, _MAXIMA["entries"])
    if len(names) > 3:
        return None
    if names[2] == "@keys":
        return Range(0, _MAXIMA["name"])
    if names[0] == "attributes":
        return Range(0, _MAXIMA["attribute"])
    return Range(0, 0) if names[2] in ("@values", "@items") else None
