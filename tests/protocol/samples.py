"""One value of every wire type, made from its annotations: `full` with every field set, `least` with none that may be left out.

A type that is added to the protocol has samples at once; `test_golden.py` then asks for its golden file.
"""

from typing import Any, cast

import msgspec
from msgspec import inspect

from contextinfinity.protocol import blocks, errors, events, jsonrpc, methods, model

INTERNAL = {jsonrpc.Request, jsonrpc.BadRequest, jsonrpc.Incoming, jsonrpc.Reply, methods.Method, model.Value, methods.Params}
ANYTHING = {"any": ["ü🌍", 1, 2.5, True, None]}

Kind = type[msgspec.Struct]


def kinds() -> dict[str, Kind]:
    """Every Struct that crosses the wire, by name."""
    found: dict[str, Kind] = {}
    for module in (blocks, errors, events, jsonrpc, methods, model):
        for name, value in vars(module).items():
            if not isinstance(value, type) or not issubclass(value, msgspec.Struct) or value.__module__ != module.__name__:
                continue
            if value not in INTERNAL and not name.startswith("_"):
                assert name not in found, f"two types are called {name}"
                found[name] = value
    return found


def full(kind: Kind) -> msgspec.Struct:
    return cast("msgspec.Struct", msgspec.convert(_struct(_info(kind), (), everything=True), kind))


def least(kind: Kind) -> msgspec.Struct:
    return cast("msgspec.Struct", msgspec.convert(_struct(_info(kind), (), everything=False), kind))


def _info(kind: Kind) -> inspect.StructType:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info


def _struct(info: inspect.StructType, above: tuple[Kind, ...], *, everything: bool) -> dict[str, Any]:
    inside = (*above, info.cls)
    values: dict[str, Any] = {} if info.tag_field is None else {info.tag_field: info.tag}
    for field in info.fields:
        if field.required or everything:
            values[field.encode_name] = _value(field.type, field.encode_name, inside, everything=everything)
    return values


def _value(info: inspect.Type, name: str, above: tuple[Kind, ...], *, everything: bool) -> Any:
    match info:
        case inspect.Metadata():
            return _value(info.type, name, above, everything=everything)
        case inspect.StructType():
            return _struct(info, above, everything=everything)
        case inspect.UnionType():
            return _value(_first(info, above), name, above, everything=everything)
        case inspect.VarTupleType() | inspect.ListType():
            return _items(info.item_type, name, above) if everything else []
        case inspect.DictType():
            return {"key": _value(info.value_type, name, above, everything=everything)} if everything else {}
        case inspect.LiteralType():
            return info.values[-1]
        case inspect.StrType():
            return name
        case inspect.IntType():
            return max(info.ge or 0, 7)
        case inspect.FloatType():
            return 1.5
        case inspect.BoolType():
            return True
        case inspect.AnyType():
            return ANYTHING
    raise AssertionError(f"no sample for {info} of {name}")


def _items(info: inspect.Type, name: str, above: tuple[Kind, ...]) -> list[Any]:
    """One of each kind that the list may hold; a type inside itself is left empty there."""
    choices = info.types if isinstance(info, inspect.UnionType) else (info,)
    found = []
    for choice in choices:
        again = isinstance(choice, inspect.StructType) and choice.cls in above
        found.append(_value(choice, name, above, everything=not again))
    return found


def _first(info: inspect.UnionType, above: tuple[Kind, ...]) -> inspect.Type:
    return next(choice for choice in info.types if not isinstance(choice, inspect.NoneType))
