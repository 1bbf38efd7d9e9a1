"""The configured models: their limits, their providers, and what it takes to call them now."""

import msgspec

from contextinfinity.daemon.config import Config, Model
from contextinfinity.daemon.core.assembly import Reserves
from contextinfinity.daemon.core.limits import Limits, limits_for
from contextinfinity.daemon.providers.base import Endpoint, Provider
from contextinfinity.daemon.providers.credentials import Credentials
from contextinfinity.daemon.providers.registry import provider
from contextinfinity.protocol.errors import InvalidParams
from contextinfinity.protocol.model import ModelInfo


class Models:
    """Reads the configuration of the moment; `config` is replaced on reload."""

    def __init__(self, config: Config, credentials: Credentials) -> None:
        self.config = config
        self.credentials = credentials

    def get(self, name: str) -> Model:
        model = self.config.models.get(name)
        if model is None:
            known = ", ".join(sorted(self.config.models))
            raise InvalidParams(f"no model {name!r} is configured; there are {known}", model=name)
        return model

    def limits(self, name: str) -> Limits:
        model = self.get(name)
        return limits_for(model.model_id, model.context_limit, model.max_output_tokens)

    def reserves(self) -> Reserves:
        c = self.config
        return Reserves(
            c.budget.response_reserve_tokens,
            c.budget.safety_margin_tokens,
            c.context.working_set_tokens,
            c.budget.max_retrieval_tokens,
        )

    def provider(self, name: str) -> Provider:
        return provider(self.get(name).provider)

    async def endpoint(self, name: str) -> Endpoint:
        model = self.get(name)
        key = None
        if model.provider != "recall":
            key = await self.credentials.find(model.provider, model.api_key_env)
        return Endpoint(
            model_id=model.model_id,
            base_url=model.base_url,
            api_key=key,
            api_key_env=model.api_key_env,
            headers=model.headers,
            proxy=self.config.network.proxy,
            ca_file=self.config.network.ca_file,
        )

    def list(self) -> tuple[ModelInfo, ...]:
        return tuple(self._info(name, model) for name, model in sorted(self.config.models.items()))

    def _info(self, name: str, model: Model) -> ModelInfo:
        limits = self.limits(name)
        info = ModelInfo(
            name=name,
            provider=model.provider,
            model_id=model.model_id,
            context_limit=limits.context_window,
            max_output_tokens=limits.max_output,
            limit_source=limits.source,
            default=name == self.config.default_model,
        )
        if model.api_key_env is None:
            return info
        present = self.credentials.at_hand(model.provider, model.api_key_env) is not None
        return msgspec.structs.replace(info, api_key_env=model.api_key_env, key_present=present)
