"""`ctx rpc`: any method of the daemon from a shell."""

import sys
from typing import Any

import click
import msgspec

from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import dump


@command(
    "ctx rpc daemon.ping",
    "ctx rpc session.list '{\"limit\": 3}'",
    "jq -n '{title: \"from jq\"}' | ctx rpc session.create -",
    "ctx rpc rpc.discover | jq -r '.methods[].name'",
)
@click.argument("method")
@click.argument("params", metavar="[JSON]", required=False)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Give up after so long.")
def rpc(method: str, params: str | None, timeout: float | None) -> None:
    """Call METHOD with the parameters in JSON (- reads them from standard input) and print the result as JSON."""
    given = _object(sys.stdin.buffer.read() if params == "-" else (params or "{}").encode())
    if timeout is None:
        dump(run(settings(), lambda client: client.call_raw(method, given)))
    else:
        dump(run(settings(), lambda client: client.call_raw(method, given, timeout=timeout)))


def _object(document: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(document.strip() or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"the parameters are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError("the parameters must be a JSON object, for example '{\"limit\": 3}'")
    return value
