"""The documents say what the code does: methods, events, errors, settings, decisions, and the README's own examples."""

import re
from pathlib import Path

from contextinfinity.daemon.config import SECTIONS, EmbedderSettings, Model
from contextinfinity.protocol import events
from contextinfinity.protocol.errors import Fault
from contextinfinity.protocol.methods import METHODS
from contextinfinity.protocol.openrpc import markdown

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def test_the_protocol_document_is_the_one_the_code_makes() -> None:
    assert (DOCS / "protocol.md").read_text() == markdown(), "run `make docs`"


def test_every_method_event_and_error_is_documented() -> None:
    text = (DOCS / "protocol.md").read_text()
    for name in (*METHODS, *events.DURABLE, *events.TRANSIENT, *(str(code) for code in Fault.by_code)):
        assert name in text, name


def test_every_setting_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    for section, kind in SECTIONS.items():
        assert f"[{section}]" in text
        for key in kind.__struct_fields__:
            assert re.search(rf"^{key} = ", text, re.MULTILINE), f"{section}.{key}"
    for name, table in (("models", Model), ("embedders", EmbedderSettings)):
        for key in table.__struct_fields__:
            assert re.search(rf"^{key} = ", text, re.MULTILINE), f"{name}.{key}"


def test_every_decision_is_listed_and_every_link_leads_somewhere() -> None:
    listed = set(re.findall(r"\(([\w-]+\.md)\)", (DOCS / "decisions" / "README.md").read_text()))
    assert listed == {p.name for p in (DOCS / "decisions").glob("*.md")} - {"README.md"}
    for document in (ROOT / "README.md", *DOCS.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_guarantee_names_a_test_that_exists() -> None:
    named = set(re.findall(r"tests/[\w/]+\.py", (DOCS / "guarantees.md").read_text()))
    assert len(named) > 10
    for path in named:
        assert (ROOT / path).exists(), path
