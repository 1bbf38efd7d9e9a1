"""Code blocks and logs for `long_messages`: shapes that every project has, with names and numbers that differ each time.

Everything comes from the generator of random numbers that is handed in, so the same seed writes the same text.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from bench import long_words as w

VERBS = w.words(
    "collect merge resolve split apply render persist reserve publish normalise compact attach reconcile expire claim"
)
QUALITIES = w.words("pending stale primary shared nested partial queued archived verified remote")
TYPES = w.words("int str float bool bytes datetime Decimal UUID")


def name(rng: Random) -> str:
    return f"{rng.choice(VERBS)}_{rng.choice(QUALITIES)}_{rng.choice(w.WORDS)}"


def block(rng: Random, slots: Mapping[str, Any]) -> str:
    return rng.choice(BLOCKS)(rng, slots)


def _python(rng: Random, s: Mapping[str, Any]) -> str:
    thing, many, kind = rng.choice(w.WORDS)[:-1], rng.choice(w.WORDS), rng.choice(TYPES)
    return (
        f"```python\n# {s['path']}\n@dataclass(frozen=True)\nclass {thing.title()}{rng.choice(QUALITIES).title()}:\n"
        f"    {many}: tuple[{kind}, ...]\n    limit: int = {rng.randrange(10, 900)}\n\n\n"
        f"def {name(rng)}(source: Iterable[{thing.title()}], *, most: int = {rng.randrange(2, 64)}) -> list[{kind}]:\n"
        f'    """Stops at the first {thing} that is not {rng.choice(QUALITIES)}."""\n    found: list[{kind}] = []\n'
        f"    for one in source:\n        if one.{rng.choice(QUALITIES)} and len(found) < most:\n"
        f"            found.append(one.{rng.choice(VERBS)}())\n        else:\n            log.debug('skipped %s', one)\n"
        f"    return found\n```"
    )


def _go(rng: Random, s: Mapping[str, Any]) -> str:
    thing, verb = rng.choice(w.WORDS)[:-1].title(), rng.choice(VERBS).title()
    return (
        f"```go\n// {verb}{thing} is called once per {rng.choice(w.WORDS)[:-1]}.\n"
        f"func (s *{thing}Service) {verb}{thing}(ctx context.Context, id string) (*{thing}, error) {{\n"
        f"\tctx, cancel := context.WithTimeout(ctx, {rng.randrange(1, 90)}*time.Second)\n\tdefer cancel()\n"
        f"\trow, err := s.{rng.choice(QUALITIES)}.Find(ctx, id)\n\tif errors.Is(err, sql.ErrNoRows) {{\n"
        f'\t\treturn nil, fmt.Errorf("{s["ident"]}: no {thing.lower()} %q", id)\n\t}}\n\tif err != nil {{\n'
        f"\t\treturn nil, err\n\t}}\n\treturn row.{rng.choice(VERBS).title()}(), nil\n}}\n```"
    )


def _typescript(rng: Random, s: Mapping[str, Any]) -> str:
    thing = rng.choice(w.WORDS)[:-1].title()
    return (
        f"```ts\nexport interface {thing}Options {{\n  {rng.choice(QUALITIES)}: boolean;\n  batchSize: number;\n}}\n\n"
        f"export async function {rng.choice(VERBS)}{thing}(client: Client, options: {thing}Options): Promise<{thing}[]> {{\n"
        f"  const {{ rows }} = await client.query({{ table: '{rng.choice(w.WORDS)}', limit: {rng.randrange(10, 500)} }});\n"
        f"  return rows\n    .filter((row) => row.{rng.choice(QUALITIES)} !== options.{rng.choice(QUALITIES)})\n"
        f"    .map((row) => ({{ ...row, {rng.choice(VERBS)}dAt: new Date() }}));\n}}\n```"
    )


def _sql(rng: Random, s: Mapping[str, Any]) -> str:
    table, other = rng.sample(w.WORDS, 2)
    return (
        f"```sql\nSELECT t.id, t.{rng.choice(QUALITIES)}_at, count(o.id) AS {other}\nFROM {table} AS t\n"
        f"LEFT JOIN {other} AS o ON o.{table[:-1]}_id = t.id AND o.{rng.choice(QUALITIES)}\n"
        f"WHERE t.created_at >= now() - interval '{rng.randrange(2, 90)} days'\n  AND t.region = ANY (:regions)\n"
        f"GROUP BY t.id\nHAVING count(o.id) > {rng.randrange(1, 40)}\nORDER BY t.id\nLIMIT {rng.randrange(20, 900)};\n```"
    )


def _yaml(rng: Random, s: Mapping[str, Any]) -> str:
    return (
        f"```yaml\n# deploy/{s['ident']}/values.yaml\nreplicas: {rng.randrange(2, 12)}\nresources:\n  limits:\n"
        f"    memory: {rng.randrange(1, 9) * 128}Mi\n    cpu: {rng.randrange(1, 20) * 100}m\nenv:\n"
        f'  - name: {rng.choice(QUALITIES).upper()}_{rng.choice(w.WORDS).upper()}\n    value: "{rng.randrange(1, 5000)}"\n'
        f"  - name: {rng.choice(VERBS).upper()}_INTERVAL\n    value: {rng.randrange(1, 120)}s\nvolumes:\n"
        f"  - {rng.choice(w.WORDS)}-{rng.choice(QUALITIES)}\n```"
    )


def _shell(rng: Random, s: Mapping[str, Any]) -> str:
    host, words = rng.choice(w.HOSTS), rng.choice(w.WORDS)
    return (
        f"```sh\n$ ssh {host} 'journalctl -u {rng.choice(w.PARTS).ident} --since -{rng.randrange(5, 90)}min'\n"
        f"$ make {rng.choice(VERBS)}-{words} REGION={rng.choice(('eu', 'us', 'ap'))}-{rng.randrange(1, 4)}\n"
        f"$ ./scripts/{name(rng)}.sh --dry-run --limit {rng.randrange(10, 900)}\n"
        f"would {rng.choice(VERBS)} {rng.randrange(3, 4000)} {words}, {rng.randrange(0, 40)} skipped\n```"
    )


def _diff(rng: Random, s: Mapping[str, Any]) -> str:
    before, after = name(rng), name(rng)
    return (
        f"```diff\n--- a/{s['path']}\n+++ b/{s['path']}\n@@ -{rng.randrange(10, 400)},7 +{rng.randrange(10, 400)},9 @@\n"
        f"     with self._{rng.choice(QUALITIES)}:\n-        self.{before}(limit={rng.randrange(2, 99)})\n"
        f"+        if not self.{rng.choice(QUALITIES)}:\n+            return\n"
        f"+        self.{after}(limit={rng.randrange(2, 99)}, {rng.choice(QUALITIES)}=True)\n         self._notify()\n```"
    )


def _table(rng: Random, s: Mapping[str, Any]) -> str:
    rows = "\n".join(
        f"| {word} | {rng.randrange(5, 900)} ms | {rng.randrange(5, 300)} ms | {rng.choice(QUALITIES)} |"
        for word in rng.sample(w.WORDS, rng.randrange(4, 8))
    )
    return f"| what | before | after | state |\n|---|---:|---:|---|\n{rows}"


BLOCKS: tuple[Callable[[Random, Mapping[str, Any]], str], ...] = (
    _python, _go, _typescript, _sql, _yaml, _shell, _diff, _table
)  # fmt: skip


def log(rng: Random, lines: tuple[str, ...], slots: Mapping[str, Any], around: list[str], length: int) -> str:
    """Routine output of a part and its neighbours, with the lines that matter somewhere in the middle."""
    shape = rng.choice(
        ("2024-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z ", "{h:02}:{m:02}:{s:02}.{ms:03} [{thread}] ", "")
    )
    hour, second, day = rng.randrange(24), 0, rng.randrange(1, 28)
    made: list[str] = []
    size, place, told = 0, int(length * rng.uniform(0.2, 0.8)), False

    def write(line: str) -> int:
        nonlocal second
        second += rng.randrange(0, 4)
        clock = {"h": hour, "m": second // 60 % 60, "s": second % 60, "ms": rng.randrange(1000)}
        made.append(shape.format(month=rng.randrange(1, 13), day=day, thread=f"t-{rng.randrange(24)}", **clock) + line)
        return len(made[-1]) + 1

    while size < length:
        if not told and size >= place:
            told = True
            size += sum(write(line.format(**slots)) for line in lines)
        words = {"n": rng.randrange(2, 99), "ms": rng.randrange(1, 4000), "hex": f"{rng.getrandbits(40):010x}"}
        ident = slots["ident"] if rng.random() < 0.7 else rng.choice(around)
        size += write(rng.choice(w.CHATTER).format(ident=ident, word=rng.choice(w.WORDS), **words))
    return "\n".join(made)
