"""`ctx expand`: a chunk that search found, in its surroundings."""

import click

from contextinfinity.clients.cli.base import command, settings
from contextinfinity.clients.cli.connection import run
from contextinfinity.clients.cli.output import clean, dump, line, style, when, who
from contextinfinity.protocol.methods import MemoryExpand, Surroundings
from contextinfinity.protocol.model import Neighbour

TURNS = click.IntRange(0, 100)


@command("ctx expand 01JCZX5W8GQ0M3V6Y2R4T7B9KD", "ctx expand 01JCZX5W8GQ0M3V6Y2R4T7B9KD -B 5 -A 0")
@click.argument("chunk")
@click.option("--before", "-B", type=TURNS, default=2, show_default=True, metavar="N", help="Turns before it.")
@click.option("--after", "-A", type=TURNS, default=2, show_default=True, metavar="N", help="Turns after it.")
def expand(chunk: str, before: int, after: int) -> None:
    """Show CHUNK with the turns around it, whole; > marks its own lines. ctx search shows ids of chunks."""
    shared = settings()
    found = run(shared, lambda client: client.call(MemoryExpand(chunk_id=chunk, before=before, after=after)))
    dump(found) if shared.json else _print(found)


def _print(found: Surroundings) -> None:
    for message in found.messages:
        _print_head(message)
        begin, end = _extent(message, found.chunk.text)
        at = 0
        for row in message.text.split("\n"):
            inside = at < end and at + len(row) > begin
            shown = clean(row.removesuffix("\r"))
            line(style(f"> {shown}", "1") if inside else f"  {shown}".rstrip())
            at += len(row) + 1
        line()


def _print_head(message: Neighbour) -> None:
    parts = [str(message.turn_seq), clean(message.turn_id), who(message.role, message.speaker)]
    if message.created_at is not None:
        parts.insert(1, when(message.created_at))
    line(style(f"{'>>' if message.focus else '──'} {' · '.join(parts)}", "1" if message.focus else "2"))


def _extent(message: Neighbour, text: str) -> tuple[int, int]:
    """Where the chunk is in the message that it is from; all of it, if the text is not there word for word."""
    if not message.focus:
        return 0, 0
    at = message.text.find(text)
    return (0, len(message.text)) if at < 0 else (at, at + len(text))
