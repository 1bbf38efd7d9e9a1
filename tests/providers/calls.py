"""What the provider tests say again and again: an endpoint, a request, one whole call and what came of it."""

import ipaddress
import ssl
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contextinfinity.daemon.core.transcript import Answer
from contextinfinity.daemon.providers.anthropic import Anthropic
from contextinfinity.daemon.providers.base import Endpoint, ModelRequest, RawEvent
from contextinfinity.daemon.providers.openai_chat import OpenAIChat
from contextinfinity.daemon.providers.openai_responses import OpenAIResponses
from contextinfinity.daemon.providers.sdk import Adapter
from contextinfinity.protocol.blocks import message
from contextinfinity.protocol.errors import ProviderError
from tests.support.provider_server import ProviderServer

KEY = "sk-test-0123456789abcdef"
ADAPTERS: dict[str, type[Adapter]] = {"anthropic": Anthropic, "openai": OpenAIResponses, "openai_chat": OpenAIChat}
REQUEST = ModelRequest("model-x", "Be brief.", (message("user", "hi"),), 512)


class Outcome(NamedTuple):
    events: list[RawEvent]
    answer: Answer
    error: ProviderError | None


def endpoint(server: ProviderServer, adapter: Adapter, **settings: Any) -> Endpoint:
    known: dict[str, Any] = {"model_id": "model-x", "base_url": server.base_url(adapter.name), "api_key": KEY}
    return Endpoint(**(known | settings))


async def call(adapter: Adapter, where: Endpoint, request: ModelRequest = REQUEST) -> Outcome:
    events: list[RawEvent] = []
    answer = Answer()
    try:
        async with aclosing(adapter.stream(request, where)) as stream:
            async for event in stream:
                events.append(event)
                for effect in adapter.normalise(event):
                    answer.apply(effect)
    except ProviderError as error:
        return Outcome(events, answer, error)
    return Outcome(events, answer, None)


def self_signed(folder: Path) -> tuple[ssl.SSLContext, str]:
    """A server's TLS context for 127.0.0.1 and the file that makes a client trust it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (folder / "cert.pem").write_bytes(cert.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, str(folder / "cert.pem")
