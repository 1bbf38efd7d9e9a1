"""What goes wrong with a provider, as one `ProviderError` whose sentence names the fix and never holds a secret.

`sdk` calls it; the code words and which of them are worth a retry are decided here for every provider alike.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from contextinfinity.daemon.providers.base import Endpoint
from contextinfinity.protocol.errors import ProviderError
from contextinfinity.protocol.model import Failed

SENTENCES = {
    "missing_key": "{provider} needs an API key: set {env} or run `ctx auth set {provider}`",
    "authentication": "{host} rejected the API key: set {env} to a valid one or run `ctx auth set {provider}`",
    "permission": "{host} does not allow this: check the account's access to {model} and its billing",
    "rate_limited": "{host} limits the rate of requests: wait and retry, or choose another model",
    "overloaded": "{host} is overloaded: retry in a moment, or choose another model",
    "too_large": "the request is larger than {model} takes: send less, or choose a model with a larger window",
    "bad_request": "{host} refused the request: check the settings of {model}",
    "not_found": "{host} has nothing under this address: check the model's id ({model}) and its base_url",
    "timeout": "{host} was silent for too long: retry, or check network and proxy",
    "connection": "the connection to {host} failed: check network, base_url and proxy, then retry",
    "certificate": "the certificate of {host} is not trusted: set ca_file to the authority that signed it",
    "server_error": "{host} failed on its side: retry in a moment",
    "malformed_stream": "{host} does not answer in the format of {provider}: check base_url and provider",
    "setting": "the endpoint of {model} cannot be used: correct it in config.toml",
}
CODES = {"certificate": "connection", "setting": "bad_request"}
RETRYABLE = {"rate_limited", "overloaded", "timeout", "connection", "server_error", "malformed_stream"}

STATUSES = {
    400: "bad_request",
    401: "authentication",
    402: "permission",
    403: "permission",
    404: "not_found",
    408: "timeout",
    409: "server_error",
    413: "too_large",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
KINDS = {
    "api_error": "server_error",
    "authentication_error": "authentication",
    "billing_error": "permission",
    "context_length_exceeded": "too_large",
    "exceed_context_size_error": "too_large",
    "insufficient_quota": "permission",
    "internal_error": "server_error",
    "invalid_api_key": "authentication",
    "invalid_request_error": "bad_request",
    "model_not_found": "not_found",
    "not_found_error": "not_found",
    "overloaded_error": "overloaded",
    "permission_error": "permission",
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "request_too_large": "too_large",
    "server_error": "server_error",
    "server_is_overloaded": "overloaded",
    "timeout_error": "timeout",
}
# Providers report a prompt beyond the window as an ordinary bad request; only the words tell.
TOO_LARGE = re.compile(r"too long|maximum context|context (length|window|size)|too many tokens", re.IGNORECASE)
SHORTEST_SECRET = 8
MAX_REMARK = 300


class Faults:
    """Makes the errors of one call: knows whom it calls, and what must not be said."""

    def __init__(self, provider: str, endpoint: Endpoint, env: str, base_url: str) -> None:
        self._names = {
            "provider": provider,
            "env": endpoint.api_key_env or env,
            "model": endpoint.model_id,
            "host": f"{provider} ({host_of(base_url) or 'no host'})",
        }
        known = [endpoint.api_key, _password(endpoint.proxy), *endpoint.headers.values()]
        self._secrets = sorted({s.strip() for s in known if s and len(s.strip()) >= SHORTEST_SECRET}, key=len)[::-1]

    def make(self, case: str, *, note: str = "", said: str = "", **data: Any) -> ProviderError:
        """The error of this case, with a remark of ours or what the other side said."""
        code = CODES.get(case, case)
        remark = note or (f"it says: {said}" if said else "")
        remark = " ".join(self.redact(remark).split())
        if len(remark) > MAX_REMARK:
            remark = remark[:MAX_REMARK] + "…"
        sentence = SENTENCES[case].format(**self._names) + (f" ({remark})" if remark else "")
        retryable = code in RETRYABLE and case != "certificate"
        if code in ("missing_key", "authentication"):
            data["env"] = self._names["env"]
        known = {name: value for name, value in data.items() if value is not None}
        return ProviderError(sentence, provider=self._names["provider"], code=code, retryable=retryable, **known)

    def of_status(self, status: int, headers: Mapping[str, str], body: object) -> ProviderError:
        kind, said = _said(body)
        code = STATUSES.get(status) or ("server_error" if status >= 500 else "bad_request")
        if code in ("bad_request", "rate_limited"):
            code = KINDS.get(kind, code)
        if code == "bad_request" and TOO_LARGE.search(said):
            code = "too_large"
        note = "it redirects: set base_url to the final address" if 300 <= status < 400 else ""
        return self.make(code, note=note, said=said, status=status, retry_after=_retry_after(headers))

    def of_event(self, payload: dict[str, Any]) -> ProviderError:
        code, said = explain(payload)
        return self.make(code, said=said)

    def redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text

    def redact_bytes(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret.encode(), b"[key]")
        return data


def host_of(url: str) -> str:
    """The host that a URL names, or nothing."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _password(url: str | None) -> str | None:
    try:
        return urlsplit(url).password if url else None
    except ValueError:
        return None


def explain(payload: object) -> tuple[str, str]:
    """Code word and text of an error object that came inside a stream."""
    kind, said = _said(payload)
    code = KINDS.get(kind, "server_error")
    return ("too_large" if code == "bad_request" and TOO_LARGE.search(said) else code), said


def failed(payload: object) -> Failed:
    """The outcome that such an error object stands for."""
    code, said = explain(payload)
    return Failed(code, said or "the provider gave no details")


def _said(body: object) -> tuple[str, str]:
    """The provider's own kind of error and its words, from the many shapes in use."""
    if isinstance(body, dict):
        inner = body.get("error") or body
        if isinstance(inner, dict):
            text = inner.get("message") or inner.get("detail") or ""
            kinds = [k for k in (inner.get("code"), inner.get("type")) if isinstance(k, str)]
            return next((k for k in kinds if k in KINDS), ""), text if isinstance(text, str) else ""
        return "", inner if isinstance(inner, str) else ""
    if isinstance(body, str) and not body.lstrip().startswith("<"):
        return "", body
    return "", ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    try:
        date = parsedate_to_datetime(headers["retry-after"])
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    except (KeyError, ValueError, TypeError):
        return None
