"""Takes out of a text whatever might be a secret, and the owner's folders, before it goes into a support file.

Rather too much than too little: what looks like a key is removed even where it is none, and named secrets everywhere.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

GONE = "[redacted]"
SHORTEST = 6
"""A known secret of fewer characters is only removed where its name gives it away: elsewhere it would be any word."""

_SECRET_NAME = re.compile(r"key|token|secret|passw|passphrase|auth|credential|cookie|header", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s\"'<>]*@", re.IGNORECASE), rf"\1{GONE}@"),
    (re.compile(r"([?&][^=&\s\"']+=)[^&\s\"']+"), rf"\1{GONE}"),
    (re.compile(r"(authorization[\"']?\s*[:=]\s*[\"']?)[^\"'\r\n,}]+", re.IGNORECASE), rf"\1{GONE}"),
    (re.compile(r"\b(bearer|basic)\s+[^\s,;\"']+", re.IGNORECASE), rf"\1 {GONE}"),
    (
        re.compile(r"((?:key|token|secret|passw(?:or)?d|passphrase|cookie)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&]+", re.IGNORECASE),
        rf"\1{GONE}",
    ),
    (
        re.compile(
            r"\b(?:sk|pk|rk|gsk|ghp|gho|ghs|ghu|github_pat|glpat|xox[a-z]|hf|pplx|r8|nvapi|tgp)[-_][A-Za-z0-9_-]{6,}"
            r"|\bAKIA[0-9A-Z]{12,}|\bAIza[0-9A-Za-z_-]{10,}|\bey[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]+"
        ),
        GONE,
    ),
)
_LONG = re.compile(r"[A-Za-z0-9+/_-]{28,}={0,2}")
_HEX = re.compile(r"[0-9a-fA-F]+")
_OURS = re.compile(r"(?:^|(?<=[-_/]))(?:[0-7][0-9A-HJKMNP-TV-Z]{25}|\d{4}-\d\d-\d\dT\d{6})(?=$|[-_/])")


class Redactor:
    """Knows the home, and secrets by their value; `text` takes them and everything that looks like one out."""

    def __init__(self, home: Path, secrets: Iterable[str] = ()) -> None:
        self._secrets = sorted({s for s in secrets if len(s) >= SHORTEST}, key=len, reverse=True)
        folders = {str(home): "<home>", os.path.realpath(home): "<home>"}
        owner = os.path.expanduser("~")
        for folder in (owner, os.path.realpath(owner)):
            folders.setdefault(folder, "~")
        self._folders = [
            (re.compile(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])"), short)
            for folder, short in sorted(folders.items(), key=lambda item: -len(item[0]))
            if folder.strip("/")
        ]

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, GONE)
        for folder, short in self._folders:
            text = folder.sub(short, text)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return _LONG.sub(lambda found: GONE if _is_random(found[0]) else found[0], text)

    def value(self, value: Any, name: str = "") -> Any:
        """A document of plain values, each judged by its name first and then by what it looks like."""
        if isinstance(value, Mapping):
            inner = name if _SECRET_NAME.search(name) else ""  # what is under such a name is like it
            return {self.text(str(key)): self.value(item, inner or str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item, name) for item in value]
        if is_secret(name, value):
            return GONE
        return self.text(value) if isinstance(value, str) else value


def is_secret(name: str, value: Any) -> bool:
    """Whether a setting of this name may hold a secret; counts, switches and names of variables do not."""
    if value is None or isinstance(value, bool) or not _SECRET_NAME.search(name):
        return False
    if isinstance(value, int | float):
        return "tokens" not in name and not isinstance(value, float)
    return not (name.endswith("_env") and is_variable(str(value)))


def is_variable(text: str) -> bool:
    """Whether this can be the name of an environment variable, rather than a key that was put in its place."""
    return _VARIABLE.fullmatch(text) is not None


def secrets_in(value: Any, name: str = "") -> Iterator[str]:
    """The texts that `Redactor.value` would remove because of their names."""
    if isinstance(value, Mapping):
        inner = name if _SECRET_NAME.search(name) else ""
        for key, item in value.items():
            yield from secrets_in(item, inner or str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from secrets_in(item, name)
    elif isinstance(value, str) and is_secret(name, value):
        yield value


def _is_random(word: str) -> bool:
    """Long words of code and paths are kept, and so are our ids and times; what mixes letters as no word does is not."""
    word = _OURS.sub("", word)
    digits, upper, lower = (any(test(c) for c in word) for test in (str.isdigit, str.isupper, str.islower))
    if "/" in word:
        return digits and upper and lower
    return (digits and (upper or lower)) or (upper and lower) or _HEX.fullmatch(word) is not None


def as_toml(tree: Mapping[str, Any], prefix: str = "") -> str:
    """Write plain values as TOML; comments and layout of the original are gone, and what they held with them."""
    own = [f"{_key(k)} = {_toml(v)}" for k, v in tree.items() if not isinstance(v, Mapping)]
    parts = ["\n".join(([f"[{prefix}]"] if prefix else []) + own)] if own or (prefix and not tree) else []
    parts += [as_toml(v, f"{prefix}.{_key(k)}" if prefix else _key(k)) for k, v in tree.items() if isinstance(v, Mapping)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool | float) else str(value)
