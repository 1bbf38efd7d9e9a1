"""`python -m bench [ROW ...]`: measures, and prints one table in which every ratio comes from a single run.

Each row is interleaved with its own baseline, so that drift meets both; latencies still want a core that is free, which is
why the load before and after is printed. `--json` prints the same for programs.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

from bench import crowd, growth, ingest, memory, ping, recovery, stalls, start, stream, submit
from bench.table import Row, load, machine, show

ROWS: dict[str, Callable[[], list[Row]]] = {
    "ping": ping.measure,
    "submit": submit.measure,
    "crowd": crowd.measure,
    "stream": stream.measure,
    "help": start.help_time,
    "ready": start.ready_time,
    "memory": start.memory,
    "recovery": recovery.measure,
    "stalls": stalls.measure,
    "growth": growth.measure,
    "search": memory.measure,
    "ingest": ingest.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures the daemon against bare baselines.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"which to measure: {', '.join(ROWS)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a row falls short of its target")
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    begin, loads = time.monotonic(), [load()]
    rows: list[Row] = []
    for name in options.rows or ROWS:
        print(f"measuring {name} …", file=sys.stderr)
        rows += ROWS[name]()
    seconds = round(time.monotonic() - begin, 1)
    loads.append(load())
    if options.json:
        found = {"machine": machine(), "load": loads, "seconds": seconds, "rows": [row.as_json() for row in rows]}
        print(json.dumps(found, indent=2))
    else:
        print(f"{show(rows)}\n\n{machine()}; load {loads[0]} before, {loads[1]} after; {seconds:.0f} s")
    return int(options.strict and any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
