"""`ctx models`: what can answer, and whether its key is there."""

from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import columns, dump
from contextinfinity.protocol.methods import ModelList
from contextinfinity.protocol.model import ModelInfo


@command("ctx models", "ctx models --json | jq -r '.models[].name'")
def models() -> None:
    """List the models that are configured; the default one is marked with *."""
    shared = settings()
    page = run(shared, lambda client: client.call(ModelList()))
    if shared.json:
        dump(page)
        return
    rows = [
        (f"{'*' if m.default else ' '} {m.name}", m.provider, m.model_id, f"{m.context_limit:,}", _key(m)) for m in page.models
    ]
    columns(rows, ("  NAME", "PROVIDER", "MODEL", "WINDOW", "KEY"))


def _key(model: ModelInfo) -> str:
    if model.api_key_env is None:
        return "none needed"
    return "present" if model.key_present else f"missing: set {model.api_key_env}, or ctx auth set {model.provider}"
