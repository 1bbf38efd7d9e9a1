"""`rpc.discover` and docs/protocol.md, both made from the method table so that neither can drift from the code.

`document` gives OpenRPC 1.3; `markdown` the same for people, and `python -m contextinfinity.protocol.openrpc` prints it.
"""

import sys
from typing import Any

import msgspec

from contextinfinity.protocol import PROTOCOL_VERSION, events
from contextinfinity.protocol.errors import Fault, FaultData
from contextinfinity.protocol.events import Notification
from contextinfinity.protocol.methods import METHODS, Method

REF = "#/components/schemas/{name}"


def document(version: str) -> dict[str, Any]:
    types = [t for m in METHODS.values() for t in (m.params, m.result)]
    told = {**events.DURABLE, **events.TRANSIENT}
    faults = dict(sorted(Fault.by_code.items()))
    data = [*told.values(), *(_data_schema(kind) for kind in faults.values())]
    schemas, components = msgspec.json.schema_components([*types, Notification, *data], ref_template=REF)
    count = len(types)
    of_events = dict(zip(told, schemas[count + 1 :], strict=False))
    of_errors = dict(zip(faults, schemas[count + 1 + len(told) :], strict=True))
    errors = {kind.word: {"code": code, "message": _first_line(kind), "data": of_errors[code]} for code, kind in faults.items()}
    return {
        "openrpc": "1.3.2",
        "info": {"title": "ContextInfinity", "version": version, "x-protocol": PROTOCOL_VERSION},
        "methods": [_method(m, components, result) for m, result in zip(METHODS.values(), schemas[1:count:2], strict=True)],
        "components": {"schemas": components, "errors": errors},
        "x-events": {
            "notification": schemas[count],
            "durable": {name: _event(kind, of_events[name]) for name, kind in events.DURABLE.items()},
            "transient": {name: _event(kind, of_events[name]) for name, kind in events.TRANSIENT.items()},
        },
    }


def _method(m: Method, components: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    shape = components[m.params.__name__]
    required = set(shape.get("required", ()))
    return {
        "name": m.name,
        "summary": m.doc.split("\n", 1)[0],
        "description": m.doc,
        "paramStructure": "by-name",
        "params": [
            {"name": name, "required": name in required, "schema": schema}
            for name, schema in sorted(shape["properties"].items(), key=lambda item: item[0] not in required)
        ],
        "result": {"name": "result", "schema": result},
        "errors": [{"$ref": f"#/components/errors/{kind.word}"} for kind in Fault.by_code.values()],
    }


def _event(kind: type[events.EventData], schema: dict[str, Any]) -> dict[str, Any]:
    return {"summary": _first_line(kind), "data": schema}


def _data_schema(kind: type[Fault]) -> type[msgspec.Struct]:
    """Each error's details under a name of their own: they are all called `Data` in the code."""
    if kind.Data is FaultData:
        return FaultData
    return msgspec.defstruct(f"{kind.__name__}Data", (), bases=(kind.Data,), frozen=True, kw_only=True)


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().split("\n", 1)[0]


def _type_name(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[1]
    if "enum" in schema:
        return " / ".join(f'"{v}"' for v in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type_name(s) for s in schema["anyOf"] if s.get("type") != "null")
    if schema.get("type") == "array":
        items = schema.get("items", {})
        return f"[{_type_name(items) if isinstance(items, dict) else '…'}]"
    return str(schema.get("type", "any"))


def _event_line(name: str, kind: type[events.EventData]) -> str:
    return f"- `{name}`: {_first_line(kind)} ({', '.join(f'`{field}`' for field in kind.__struct_fields__)})"


def markdown() -> str:
    """The reference for people; regenerate with `make docs`."""
    doc = document("")
    lines = [
        "# The wire contract",
        "",
        f"Protocol version {PROTOCOL_VERSION}. Made from the code by `make docs`; `rpc.discover` gives the same as OpenRPC.",
        "",
        "JSON-RPC 2.0 over a Unix socket (newline-delimited JSON, or `Content-Length` headers if the first byte is `C`)",
        "or over a websocket (one document per text message). Requests of one connection start in arrival order and run",
        "concurrently. `$/cancelRequest {id}` cancels a request, never a turn. Unknown parameters are refused by name.",
        "On end of input the daemon finishes what was asked, answers, and closes.",
        "",
        "## Methods",
        "",
    ]
    for m in doc["methods"]:
        lines += [f"### {m['name']}", "", m["description"].replace("\n    ", "\n").strip(), ""]
        lines += [f"- `{p['name']}`{'' if p['required'] else ' (optional)'}: {_type_name(p['schema'])}" for p in m["params"]]
        lines += [f"- result: {_type_name(m['result']['schema'])}", ""]
    lines += ["## Values", ""]
    for name, schema in sorted(doc["components"]["schemas"].items()):
        if any(name == m.params.__name__ for m in METHODS.values()) or "properties" not in schema:
            continue
        required = set(schema.get("required", ()))
        lines += [f"### {name}", "", *([schema["description"], ""] if "description" in schema else [])]
        lines += [f"- `{k}`{'' if k in required else '?'}: {_type_name(v)}" for k, v in schema["properties"].items()]
        lines.append("")
    lines += ["## Events", "", "Notification `event` with these params:", ""]
    lines += [f"- `{k}`: {_type_name(v)}" for k, v in doc["components"]["schemas"]["Notification"]["properties"].items()]
    lines += ["", "Durable, replayed by `events.subscribe` with `since`:", ""]
    lines += [_event_line(name, kind) for name, kind in events.DURABLE.items()]
    lines += ["", "Transient, with the cursor of the last durable event:", ""]
    lines += [_event_line(name, kind) for name, kind in events.TRANSIENT.items()]
    lines += [
        "",
        "## Errors",
        "",
        "`error.data.code` is a word; of ours it is the one given here unless a provider says more.",
        "",
    ]
    lines += [f"- `{e['code']}` `{word}`: {e['message']}" for word, e in doc["components"]["errors"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
