"""The interface describes itself: a valid OpenRPC document, and a reference for people that cannot fall behind it."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from contextinfinity.daemon.rpc.handlers import handlers
from contextinfinity.daemon.rpc.services import Services
from contextinfinity.protocol import events
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import METHODS
from contextinfinity.protocol.openrpc import document, markdown
from tests.protocol.test_golden import golden

SCHEMAS = Path(__file__).parent / "schemas"
REFERENCE = Path(__file__).parents[2] / "docs" / "protocol.md"


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    """As a client gets it: JSON, not Python."""
    decoded: dict[str, Any] = json.loads(json.dumps(document("1.2.3")))
    return decoded


def meta_validator() -> Draft7Validator:
    openrpc = json.loads((SCHEMAS / "openrpc-1.3.json").read_text())
    tools = Resource.from_contents(json.loads((SCHEMAS / "json-schema-tools.json").read_text()), default_specification=DRAFT7)
    registry = Registry().with_resources(
        [("https://meta.json-schema.tools", tools), ("https://meta.json-schema.tools/", tools)]
    )
    return Draft7Validator(openrpc, registry=registry)


def test_the_document_is_openrpc(published: dict[str, Any]) -> None:
    assert [error.message for error in meta_validator().iter_errors(published)] == []
    assert published["info"]["version"] == "1.2.3"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("methods"),
        lambda d: d["methods"][0].pop("name"),
        lambda d: d["methods"][0]["params"].append({"name": "x"}),
        lambda d: d["components"]["errors"]["not_found"].pop("code"),
        lambda d: d["components"]["schemas"]["Turn"].update(type="no such type"),
        lambda d: d.update(surplus=1),
    ],
)
def test_the_meta_schema_would_object(published: dict[str, Any], spoil: Any) -> None:
    broken = json.loads(json.dumps(published))
    spoil(broken)
    assert list(meta_validator().iter_errors(broken))


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere(published: dict[str, Any]) -> None:
    found = set(references(published))
    assert found
    for reference in found:
        target = published
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_every_method_is_there_with_its_parameters(published: dict[str, Any]) -> None:
    assert [m["name"] for m in published["methods"]] == list(METHODS)
    submit = next(m for m in published["methods"] if m["name"] == "turn.submit")
    assert {p["name"]: p["required"] for p in submit["params"]} == {
        "branch_id": True, "content": True, "model": False, "tools_mode": False, "idempotency_key": False,
        "queue": False, "tz": False,
    }  # fmt: skip
    assert [p["required"] for p in submit["params"]] == sorted((p["required"] for p in submit["params"]), reverse=True)


@pytest.mark.parametrize("size", ["full", "least"])
def test_what_is_sent_is_what_the_schemas_promise(published: dict[str, Any], size: str) -> None:
    """Golden values against the published schemas, so that a program made from these understands the daemon."""
    values = golden("values")
    checked = 0
    for name in published["components"]["schemas"]:
        if name in values:
            root = {"$ref": f"#/components/schemas/{name}", "components": published["components"]}
            errors = [error.message for error in Draft202012Validator(root).iter_errors(values[name][size])]
            assert errors == [], name
            checked += 1
    assert checked > 30
    for m in published["methods"]:
        for parameter in m["params"]:
            sent = golden("params")[m["name"]][size]
            if parameter["name"] in sent:
                root = {**parameter["schema"], "components": published["components"]}
                errors = [error.message for error in Draft202012Validator(root).iter_errors(sent[parameter["name"]])]
                assert errors == [], (m["name"], parameter["name"])


def test_events_and_errors_are_described(published: dict[str, Any]) -> None:
    assert published["x-events"]["durable"].keys() == events.DURABLE.keys()
    assert published["x-events"]["transient"].keys() == events.TRANSIENT.keys()
    assert {e["code"] for e in published["components"]["errors"].values()} == Fault.by_code.keys()


def test_every_method_has_a_handler_and_every_handler_a_method() -> None:
    world = SimpleNamespace(storage=None, hub=None, mint=None, models=None, streams=None, memory=None)
    services = cast("Services", SimpleNamespace(world=world, branches=None, embedding=None, version="1"))
    assert handlers(services).keys() == {m.params for m in METHODS.values()}


def test_the_reference_in_docs_is_up_to_date() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == markdown(), "run `make docs`"


def test_the_reference_names_every_method_event_and_error() -> None:
    text = markdown()
    for name in METHODS:
        assert f"\n### {name}\n" in text
    for event in (*events.DURABLE, *events.TRANSIENT):
        assert f"\n- `{event}`: " in text
    for code, kind in Fault.by_code.items():
        assert f"\n- `{code}` `{kind.word}`: " in text


def test_every_method_says_what_it_does() -> None:
    for m in METHODS.values():
        assert m.doc.strip().endswith((".", "?")), f"{m.name} has no sentence"
        assert not m.doc.startswith("Parameters of one method")
