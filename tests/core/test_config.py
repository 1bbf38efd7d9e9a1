"""Configuration: precedence, sources, and errors that name the file, the key and the fix."""

from pathlib import Path

import pytest

from contextinfinity.daemon.config import ConfigError, default_socket, differences, load, resolve_home


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_file_everything_is_default(tmp_path: Path) -> None:
    config = load(tmp_path / "none.toml", {})
    assert config.default_model == "recall"
    assert config.stream.policy == "buffered"
    assert (config.stream.flush_ms, config.stream.flush_bytes, config.stream.fsync_ms) == (250, 8192, 2000)
    assert config.source("stream.policy") == "default"
    assert {"recall", "sonnet", "gpt"} <= config.models.keys()


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    path = _file(tmp_path, '[stream]\npolicy = "write_ahead"\nflush_ms = 7\n[websocket]\nport = 1\n')
    config = load(path, {"CTX_STREAM_FLUSH_MS": "9", "CTX_WEBSOCKET_PORT": "2"}, {"websocket.port": 3})
    assert (config.stream.policy, config.stream.flush_ms, config.websocket.port) == ("write_ahead", 9, 3)
    assert config.source("stream.policy") == str(path)
    assert config.source("stream.flush_ms") == "environment CTX_STREAM_FLUSH_MS"
    assert config.source("websocket.port") == "flag"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[stream]\npolicy = 'sometimes'", "policy"),
        ("[stream]\nflush_ms = 'soon'", "flush_ms"),
        ("[stream", "TOML"),
        ("[models.x]\nprovider = 'nobody'\nmodel_id = 'm'", "models.x"),
        ("[models.x]\nprovider = 'openai'", "model_id"),
        ("[general]\ndefault_model = 'nope'", "nope"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(_file(tmp_path, text), {})
    assert named in str(caught.value)
    assert "config.toml" in str(caught.value)


def test_what_is_not_known_is_reported_and_does_no_harm(tmp_path: Path) -> None:
    config = load(_file(tmp_path, "[stream]\nflsh_ms = 3\n[future]\nx = 1\n"), {})
    assert any("flsh_ms" in w for w in config.warnings)
    assert any("future" in w for w in config.warnings)


def test_one_configured_model_is_the_default_and_a_second_needs_a_choice(tmp_path: Path) -> None:
    one = '[models.mine]\nprovider = "openai_chat"\nmodel_id = "llama3"\n'
    assert load(_file(tmp_path, one), {}).default_model == "mine"
    two = one + '[models.other]\nprovider = "anthropic"\nmodel_id = "claude-x"\n'
    config = load(_file(tmp_path, two), {})
    assert config.default_model == "recall"
    assert config.models["other"].api_key_env == "ANTHROPIC_API_KEY"


def test_the_home_comes_from_flag_environment_data_dir_or_default(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert resolve_home(None, environ) == tmp_path / ".contextinfinity"
    (tmp_path / ".contextinfinity").mkdir()
    (tmp_path / ".contextinfinity" / "config.toml").write_text('[general]\ndata_dir = "/elsewhere"\n')
    assert resolve_home(None, environ) == Path("/elsewhere")
    assert resolve_home(None, {**environ, "CTX_HOME": "/env"}) == Path("/env")
    assert resolve_home("/flag", {**environ, "CTX_HOME": "/env"}) == Path("/flag")


def test_only_the_usual_home_uses_the_runtime_folder(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/1"}
    assert default_socket(tmp_path / ".contextinfinity", environ) == Path("/run/user/1/contextinfinity/ctxd.sock")
    assert default_socket(Path("/other"), environ) == Path("/other/run/ctxd.sock")


def test_differences_are_named(tmp_path: Path) -> None:
    old = load(_file(tmp_path, ""), {})
    new = load(_file(tmp_path, '[stream]\nflush_ms = 1\n[models.m]\nprovider = "recall"\nmodel_id = "x"\n'), {})
    assert differences(old, new) == ("stream.flush_ms", "models.m")


def test_an_error_names_the_setting_its_source_and_what_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "config.toml", {"CTX_STREAM_POLICY": "bogus"})
    assert "environment CTX_STREAM_POLICY" in str(caught.value)
    assert "stream.policy" in str(caught.value)
    assert "'buffered' or 'write_ahead'" in str(caught.value)
    with pytest.raises(ConfigError, match=r"flag: websocket\.port"):
        load(tmp_path / "config.toml", {}, {"websocket.port": 99_999})
