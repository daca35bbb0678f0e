"""What a SPIR-V module asks for: push-constant members, specialisation constants, workgroup size and shared memory."""

import functools
from dataclasses import dataclass, field

import numpy as np

from labkit.errors import ShaderError

_NAME, _MEMBER_NAME, _EXECUTION_MODE = 5, 6, 16
_TYPE_INT, _TYPE_FLOAT, _TYPE_VECTOR, _TYPE_ARRAY, _TYPE_STRUCT, _TYPE_POINTER, _TYPE_FORWARD = (
    21,
    22,
    23,
    28,
    30,
    32,
    39,
)
_TYPE_BOOL = 20
_CONSTANT, _SPEC_TRUE, _SPEC_FALSE, _SPEC, _SPEC_COMPOSITE, _SPEC_OP = 43, 48, 49, 50, 51, 52
_CONSTANT_COMPOSITE, _VARIABLE, _DECORATE, _MEMBER_DECORATE = 44, 59, 71, 72
_SPEC_ID, _BUILTIN, _OFFSET, _WORKGROUP_SIZE = 1, 11, 35, 25
_PUSH_CONSTANT_CLASS, _WORKGROUP_CLASS = 9, 4
_ARITHMETIC = {
    128: lambda a, b: a + b,
    130: lambda a, b: a - b,
    132: lambda a, b: a * b,
    134: lambda a, b: a // b if b else 0,
    137: lambda a, b: a % b if b else 0,
    194: lambda a, b: a >> b,
    196: lambda a, b: a << b,
    170: lambda a, b: int(a == b),
    171: lambda a, b: int(a != b),
    172: lambda a, b: int(a > b),
    174: lambda a, b: int(a >= b),
    176: lambda a, b: int(a < b),
    178: lambda a, b: int(a <= b),
}
_SELECT, _FUNCTION, _FUNCTION_END = 169, 54, 56


@dataclass(frozen=True)
class Member:
    """One push-constant member: its byte offset and struct format ("Q" address, "I", "i", "f", repeated for vectors)."""

    name: str
    offset: int
    format: str


@dataclass
class Interface:
    """The names and sizes a kernel is built and called with."""

    push: tuple[Member, ...] = ()
    push_bytes: int = 0
    constants: dict[str, tuple[int, str, int]] = field(default_factory=dict)  # name -> (constant id, format, default)
    local_size: tuple[int, int, int] = (1, 1, 1)  # with the constants given to `reflect`
    shared_bytes: int = 0


class _Module:
    def __init__(self, words: np.ndarray, name: str) -> None:
        self.name = name
        self.names: dict[int, str] = {}
        self.members: dict[tuple[int, int], str] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        self.spec_ids: dict[int, int] = {}
        self.types: dict[int, tuple[str, list[int]]] = {}
        self.values: dict[int, int] = {}
        self.specs: dict[int, tuple[str, int]] = {}
        self.composites: dict[int, list[int]] = {}
        self.operations: dict[int, tuple[int, list[int]]] = {}
        self.variables: list[tuple[int, int]] = []  # (pointer type, storage class)
        self.workgroup_size: int | None = None
        self.local_size: tuple[int, int, int] = (1, 1, 1)
        at, op, code = 5, 0, False
        heads, end = words.tolist(), len(words)
        while at < end:
            op, count = heads[at] & 0xFFFF, heads[at] >> 16
            if count == 0 or at + count > end:
                raise ShaderError(f"{name} is damaged SPIR-V at word {at}: rebuild it with `lab shaders`")
            code = code or op == _FUNCTION  # behind which nothing is declared
            if not code:
                self._instruction(op, words[at + 1 : at + count])
            at += count
        if op != _FUNCTION_END:
            raise ShaderError(f"{name} is SPIR-V cut short: rebuild it with `lab shaders`")

    def _instruction(self, op: int, args: np.ndarray) -> None:
        a = [int(v) for v in args] if op not in (_NAME, _MEMBER_NAME) else [int(v) for v in args[:2]]
        if op == _NAME:
            self.names[a[0]] = _string(args[1:])
        elif op == _MEMBER_NAME:
            self.members[a[0], a[1]] = _string(args[2:])
        elif op == _DECORATE and a[1] == _SPEC_ID:
            self.spec_ids[a[0]] = a[2]
        elif op == _DECORATE and a[1] == _BUILTIN and a[2] == _WORKGROUP_SIZE:
            self.workgroup_size = a[0]
        elif op == _MEMBER_DECORATE and a[2] == _OFFSET:
            self.offsets[a[0], a[1]] = a[3]
        elif op == _EXECUTION_MODE and a[1] == 17:
            self.local_size = (a[2], a[3], a[4])
        elif op == _TYPE_INT:
            self.types[a[0]] = ("i" if a[2] else "I", [a[1]])
        elif op == _TYPE_BOOL:
            self.types[a[0]] = ("I", [32])
        elif op == _TYPE_FLOAT:
            self.types[a[0]] = ("f", [a[1]])
        elif op in (_TYPE_VECTOR, _TYPE_ARRAY, _TYPE_STRUCT, _TYPE_POINTER):
            kind = {_TYPE_VECTOR: "vector", _TYPE_ARRAY: "array", _TYPE_STRUCT: "struct", _TYPE_POINTER: "pointer"}[op]
            self.types[a[0]] = (kind, a[1:])
        elif op == _TYPE_FORWARD:
            self.types.setdefault(a[0], ("pointer", [a[1], 0]))
        elif op == _CONSTANT:
            self.values[a[1]] = a[2]
        elif op in (_SPEC_TRUE, _SPEC_FALSE):
            self.specs[a[1]] = ("I", int(op == _SPEC_TRUE))
        elif op == _SPEC:
            self.specs[a[1]] = (self.types[a[0]][0], a[2])
        elif op in (_SPEC_COMPOSITE, _CONSTANT_COMPOSITE):
            self.composites[a[1]] = a[2:]
        elif op == _SPEC_OP:
            self.operations[a[1]] = (a[2], a[3:])
        elif op == _VARIABLE:
            self.variables.append((a[0], a[2]))

    def by_id(self, given: dict[str, int]) -> dict[int, int]:
        """Given constants by their constant id: the workgroup size has an id but no name of its own."""
        ids = {self.names[i]: spec for i, spec in self.spec_ids.items() if i in self.names}
        return {ids[name]: value for name, value in given.items() if name in ids}

    def value(self, ident: int, given: dict[str, int]) -> int:
        """A constant's value with `given` overriding specialisation constants by name."""
        if ident in self.values:
            return self.values[ident]
        if ident in self.specs:
            return int(self.by_id(given).get(self.spec_ids.get(ident, -1), self.specs[ident][1]))
        if ident in self.operations:
            op, args = self.operations[ident]
            if op in _ARITHMETIC and len(args) == 2:
                return int(_ARITHMETIC[op](self.value(args[0], given), self.value(args[1], given)))
            if op == _SELECT:
                return self.value(args[1] if self.value(args[0], given) else args[2], given)
        raise ShaderError(
            f"{self.name} sizes an array by an expression labkit cannot evaluate: use +, -, *, / or shifts"
        )

    def size(self, kind: int, given: dict[str, int]) -> int:
        """Bytes of a type in shared memory."""
        code, a = self.types[kind]
        if code in ("I", "i", "f"):
            return a[0] // 8
        if code == "vector":
            return self.size(a[0], given) * a[1]
        if code == "array":
            return self.size(a[0], given) * self.value(a[1], given)
        if code == "struct":
            return sum(self.size(m, given) for m in a)
        return 8

    def push_format(self, kind: int, where: str) -> str:
        code, a = self.types.get(kind, ("", []))
        if code == "pointer":
            return "Q"
        if code in ("i", "I"):
            return "Q" if a[0] == 64 else code
        if code == "f" and a[0] == 32:
            return "f"
        if code == "vector":
            return self.push_format(a[0], where) * a[1]
        raise ShaderError(
            f"{where} has a type labkit does not pass: use uint, int, float, vectors of them or references"
        )


def _string(words: np.ndarray) -> str:
    return words.tobytes().split(b"\0", 1)[0].decode(errors="replace")


@functools.lru_cache(maxsize=128)
def _parsed(spirv: bytes, name: str) -> _Module:
    """The module, kept: a kernel is read with its defaults and again with its constants, and many differ in these only."""
    return _Module(np.frombuffer(spirv, "<u4"), name)


def reflect(spirv: bytes, name: str, constants: dict[str, int] | None = None) -> Interface:
    """The interface of little-endian `spirv` under the given integer constants, others at their defaults.

    Raises ShaderError when the bytes are not SPIR-V or a push constant has a type labkit does not pass.
    """
    if len(spirv) < 20 or len(spirv) % 4 or spirv[:4] != b"\x03\x02\x23\x07":
        raise ShaderError(f"{name} is not SPIR-V ({len(spirv)} bytes): rebuild it with `lab shaders`")
    try:
        return _read(_parsed(spirv, name), name, constants or {})
    except (LookupError, ValueError, TypeError, RecursionError):
        raise ShaderError(f"{name} is damaged SPIR-V: rebuild it with `lab shaders`") from None


def _read(module: _Module, name: str, constants: dict[str, int]) -> Interface:
    defaults = {
        module.names[ident]: (module.spec_ids[ident], code, default)
        for ident, (code, default) in module.specs.items()
        if ident in module.spec_ids and ident in module.names
    }
    # a workgroup size set by id has a default of its own; what counts is the default of the constant with a name
    given = {key: default for key, (_, _, default) in defaults.items()} | constants
    made = Interface(local_size=module.local_size)
    push = []
    for pointer, storage in module.variables:
        target = module.types[pointer][1][1]
        if storage == _PUSH_CONSTANT_CLASS:
            for i, kind in enumerate(module.types[target][1]):
                label = module.members.get((target, i), f"member{i}")
                code = module.push_format(kind, f"{name}: push constant {label}")
                push.append(Member(label, module.offsets[target, i], code))
        elif storage == _WORKGROUP_CLASS:
            made.shared_bytes += module.size(target, given)
    made.push = tuple(push)
    size = max((m.offset + sum(8 if c == "Q" else 4 for c in m.format) for m in push), default=0)
    made.push_bytes = (size + 3) // 4 * 4
    made.constants = defaults
    if module.workgroup_size is not None:
        x, y, z = (module.value(i, given) for i in module.composites[module.workgroup_size])
        made.local_size = (x, y, z)
    return made
