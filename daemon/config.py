"""The configuration: one frozen value, read at start and on reload, in which every setting can say where it came from.

Flags win over `CTX_*` variables, these over config.toml, that over the defaults; what is not known is reported, not fatal.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

T = TypeVar("T", bound=msgspec.Struct)
Tokens = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file, the key and the fix."""


class General(msgspec.Struct, frozen=True):
    default_model: str | None = None
    data_dir: str | None = None
    max_frame_bytes: Annotated[int, Meta(ge=65_536, le=1 << 30)] = 16 * 1024 * 1024


class BudgetSettings(msgspec.Struct, frozen=True):
    response_reserve_tokens: Positive = 4000
    safety_margin_tokens: Tokens | None = None
    max_retrieval_tokens: Tokens = 6000


class ContextSettings(msgspec.Struct, frozen=True):
    working_set_tokens: Positive = 50_000
    pin_tokens: Positive = 2000


class Retrieval(msgspec.Struct, frozen=True):
    embedder: str = "local"
    embedding_model: str = "text-embedding-3-small"
    scope: Literal["session", "everything"] = "session"
    top_k: Positive = 6
    overfetch_k: Positive = 16
    similarity_threshold: Annotated[float, Meta(ge=-1, le=1)] | None = None
    enable_mmr: bool = True
    recency_boost: Annotated[float, Meta(ge=0, le=1)] = 0.10
    overlap_tokens: Annotated[int, Meta(ge=0, le=200)] = 0
    idle_seconds: Positive = 300


class Imports(msgspec.Struct, frozen=True):
    watch: tuple[str, ...] = ()


class EmbedderSettings(msgspec.Struct, frozen=True):
    """`file` and `tokenizer` are a local ONNX model that is not in the catalogue; `style` is the dialect of an HTTP server."""

    kind: Literal["local", "openai", "http"]
    model: str
    url: str | None = None
    style: Literal["ollama", "tei"] = "ollama"
    api_key_env: str | None = None
    file: str | None = None
    tokenizer: str | None = None
    pooling: Literal["cls", "mean"] = "cls"
    query_prefix: str = ""
    threshold: Annotated[float, Meta(ge=-1, le=1)] | None = None


class Stream(msgspec.Struct, frozen=True):
    policy: Literal["buffered", "write_ahead"] = "buffered"
    flush_ms: Positive = 250
    flush_bytes: Positive = 8192
    fsync_ms: Positive = 2000


class Websocket(msgspec.Struct, frozen=True):
    enabled: bool = False
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    allowed_origins: tuple[str, ...] = ()


class Network(msgspec.Struct, frozen=True):
    proxy: str | None = None
    ca_file: str | None = None


class Model(msgspec.Struct, frozen=True):
    provider: Literal["anthropic", "openai", "openai_chat", "recall"]
    model_id: str
    context_limit: Positive | None = None
    max_output_tokens: Positive | None = None
    api_key_env: str | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}


BUILT_IN: dict[str, Model] = {
    "recall": Model("recall", "recall"),
    "sonnet": Model("anthropic", "claude-sonnet-4-20250514", 200_000, None, "ANTHROPIC_API_KEY"),
    "gpt": Model("openai", "gpt-5.2", 400_000, None, "OPENAI_API_KEY"),
}
KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "openai_chat": "OPENAI_API_KEY"}
BUILT_IN_EMBEDDERS: dict[str, EmbedderSettings] = {
    "local": EmbedderSettings("local", "snowflake-arctic-embed-s"),
    "openai": EmbedderSettings("openai", "text-embedding-3-small", api_key_env="OPENAI_API_KEY"),
    "http": EmbedderSettings("http", "nomic-embed-text", url="http://127.0.0.1:11434"),
}
NO_EMBEDDER = "none"
LISTS = frozenset({"websocket.allowed_origins", "imports.watch"})


class Config(msgspec.Struct, frozen=True):
    general: General = General()
    budget: BudgetSettings = BudgetSettings()
    context: ContextSettings = ContextSettings()
    retrieval: Retrieval = Retrieval()
    imports: Imports = Imports()
    stream: Stream = Stream()
    websocket: Websocket = Websocket()
    network: Network = Network()
    models: dict[str, Model] = {}
    embedders: dict[str, EmbedderSettings] = {}
    default_model: str = "recall"
    sources: dict[str, str] = {}
    warnings: tuple[str, ...] = ()

    def source(self, key: str) -> str:
        """Where a setting such as `stream.policy` came from."""
        return self.sources.get(key, "default")


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "general": General,
    "budget": BudgetSettings,
    "context": ContextSettings,
    "retrieval": Retrieval,
    "imports": Imports,
    "stream": Stream,
    "websocket": Websocket,
    "network": Network,
}
NEEDS_RESTART = frozenset(
    {
        "general.data_dir",
        "general.max_frame_bytes",
        *(f"{s}.{k}" for s in ("websocket", "stream") for k in SECTIONS[s].__struct_fields__),
    }
)


def load(path: Path, environ: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Config:
    """Read everything; `ConfigError` names what is wrong, and nothing of a broken file is used."""
    tree = _read(path)
    values: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    sources: dict[str, str] = {}
    warnings: list[str] = []
    models = tree.pop("models", {})
    embedders = tree.pop("embedders", {})
    for name, tables in (("models", models), ("embedders", embedders)):
        if not isinstance(tables, dict):
            raise ConfigError(f"{path}: {name} must be tables such as [{name}.mine]")
    for section, body in tree.items():
        if section not in SECTIONS or not isinstance(body, dict):
            warnings.append(f"{path.name}: [{section}] is not used by this version")
            continue
        known = SECTIONS[section].__struct_fields__
        for key, value in body.items():
            if key in known:
                values[section][key] = value
                sources[f"{section}.{key}"] = str(path)
            else:
                warnings.append(f"{path.name}: {section}.{key} is not used by this version")
    for section, kind in SECTIONS.items():
        for key in kind.__struct_fields__:
            variable = f"CTX_{section}_{key}".upper()
            if variable in environ:
                text = environ[variable]
                values[section][key] = text.split(",") if f"{section}.{key}" in LISTS else text
                sources[f"{section}.{key}"] = f"environment {variable}"
    for dotted, value in (flags or {}).items():
        section, _, key = dotted.partition(".")
        values[section][key] = value
        sources[dotted] = "flag"
    sections = {name: _section(values[name], name, kind, sources, path) for name, kind in SECTIONS.items()}
    configured = {name: _model(body, f"{path.name} [models.{name}]") for name, body in models.items()}
    all_embedders = _embedders(embedders, sections["retrieval"], path)
    everything = {
        **sections,
        "models": BUILT_IN | configured,
        "embedders": all_embedders,
        "sources": sources,
        "warnings": tuple(warnings),
    }
    config = msgspec.convert(everything, Config)
    return msgspec.structs.replace(config, default_model=_default_model(config, configured, path))


def _embedders(tables: Mapping[str, Any], retrieval: Any, path: Path) -> dict[str, EmbedderSettings]:
    """The built-in ones and those of the file; `retrieval.embedding_model` is the model of the one called `openai`."""
    openai = msgspec.structs.replace(BUILT_IN_EMBEDDERS["openai"], model=retrieval.embedding_model)
    found = {**BUILT_IN_EMBEDDERS, "openai": openai}
    for name, body in tables.items():
        if name == NO_EMBEDDER:
            raise ConfigError(f"{path}: [embedders.{NO_EMBEDDER}]: {NO_EMBEDDER!r} means no embedder; choose another name")
        base = msgspec.to_builtins(BUILT_IN_EMBEDDERS[name]) if name in BUILT_IN_EMBEDDERS else {}
        if not isinstance(body, dict):
            raise ConfigError(f"{path}: embedders must be tables such as [embedders.mine]")
        made = _convert(base | body, EmbedderSettings, f"{path.name} [embedders.{name}]")
        if made.kind == "openai" and made.url is None and made.api_key_env is None:
            made = msgspec.structs.replace(made, api_key_env=KEY_VARIABLES["openai"])
        found[name] = made
    if retrieval.embedder not in (NO_EMBEDDER, *found):
        raise ConfigError(
            f"{path}: retrieval.embedder {retrieval.embedder!r} is not configured; "
            f"there are {', '.join(sorted((NO_EMBEDDER, *found)))}"
        )
    return found


def _default_model(config: Config, configured: Mapping[str, Model], path: Path) -> str:
    wanted = config.general.default_model
    if wanted is None:
        return next(iter(configured)) if len(configured) == 1 else "recall"
    if wanted not in config.models:
        raise ConfigError(f"{path}: default_model {wanted!r} is not configured; there are {', '.join(sorted(config.models))}")
    return wanted


def _model(body: Any, where: str) -> Model:
    model = _convert(body, Model, where)
    hosted = model.provider != "openai_chat" or model.base_url is None
    if model.api_key_env is None and hosted and model.provider in KEY_VARIABLES:
        return msgspec.structs.replace(model, api_key_env=KEY_VARIABLES[model.provider])
    return model


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _section(values: dict[str, Any], name: str, kind: type[T], sources: Mapping[str, str], path: Path) -> T:
    """One section; an error names the setting, where it came from, and what it may be."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        key = where.rstrip("`").split("[")[0]
        choices = get_args(get_type_hints(kind)[key]) if key in kind.__struct_fields__ else ()
        allowed = (
            f"; it may be {' or '.join(map(repr, choices))}" if choices and all(isinstance(c, str) for c in choices) else ""
        )
        raise ConfigError(f"{sources.get(f'{name}.{key}', path)}: {name}.{key}: {what}{allowed}") from None


def _convert(value: Any, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def resolve_home(flag: str | None, environ: Mapping[str, str]) -> Path:
    """The home folder: flag, then CTX_HOME, then `general.data_dir` of the default config, then ~/.contextinfinity."""
    default = Path(environ.get("HOME") or os.path.expanduser("~")) / ".contextinfinity"
    if flag or environ.get("CTX_HOME"):
        return Path(flag or environ["CTX_HOME"]).expanduser().absolute()
    general = _read(default / "config.toml").get("general")
    data_dir = general.get("data_dir") if isinstance(general, dict) else None
    return Path(data_dir).expanduser().absolute() if isinstance(data_dir, str) else default


def default_socket(home: Path, environ: Mapping[str, str]) -> Path:
    """The runtime folder's socket for the usual home; another home keeps its own, so that two daemons never share one."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    usual = home == resolve_home(None, {k: v for k, v in environ.items() if k != "CTX_HOME"})
    return Path(runtime) / "contextinfinity" / "ctxd.sock" if runtime and usual else home / "run" / "ctxd.sock"


def differences(old: Config, new: Config) -> tuple[str, ...]:
    """The settings whose value is not the same, by their dotted names."""
    changed = [
        f"{section}.{key}"
        for section, kind in SECTIONS.items()
        for key in kind.__struct_fields__
        if getattr(getattr(old, section), key) != getattr(getattr(new, section), key)
    ]
    for kind in ("models", "embedders"):
        before, after = getattr(old, kind), getattr(new, kind)
        changed += [f"{kind}.{name}" for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    return tuple(changed)
