"""The unit files: valid to the service manager itself where it is at hand, and right in what they promise."""

import configparser
import os
import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from contextinfinity.clients import services
from contextinfinity.clients.cli.service import rendered, templates
from contextinfinity.clients.endpoint import home_of

ANALYZE = shutil.which("systemd-analyze")
EXPOSURE = 2.0
SECRETS = ("sk-", "api_key=", "EnvironmentFile", "password")


class Unit(configparser.RawConfigParser):
    """systemd's dialect: names keep their case, a name may come back, and its values are joined."""

    def __init__(self) -> None:
        super().__init__(strict=False, delimiters=("=",), comment_prefixes=("#",), interpolation=None)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def parse(text: str) -> Unit:
    unit = Unit()
    unit.read_string(text)
    return unit


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Every systemd file with its placeholders filled in, in one folder."""
    folder = tmp_path / "units"
    folder.mkdir()
    for source in templates("systemd").iterdir():
        text = source.read_text(encoding="utf-8").replace("@CTXD@", "/bin/true").replace("@HOME@", str(tmp_path))
        (folder / source.name).write_text(text)
    return folder


def analyze(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_COLORS": "0", "SYSTEMD_LOG_LEVEL": "info"}
    return subprocess.run([ANALYZE, *args], capture_output=True, text=True, env=env, timeout=60, check=False)


def test_all_four_files_are_there(units: Path) -> None:
    assert {path.name for path in units.iterdir()} == {"ctxd.service", "ctxd.socket", "ctxd@.service", "ctxd@.socket"}


@pytest.mark.parametrize("name", ["ctxd.service", "ctxd.socket", "ctxd@.service", "ctxd@.socket"])
def test_systemd_accepts_every_unit(units: Path, tmp_path: Path, name: str) -> None:
    unit = parse((units / name).read_text())
    assert "Description" in unit["Unit"]
    assert "WantedBy" in unit["Install"]
    if ANALYZE is None:
        return  # without systemd the parse above and the promises below are the check
    scope = ["--user"] if "@" not in name else []
    result = analyze(tmp_path, "verify", *scope, str(units / name))
    # Other units of the machine may be faulty; ours must not be named.
    complaints = [line for line in result.stderr.splitlines() if "ctxd" in line]
    assert complaints == []
    assert result.returncode == 0, result.stderr


def test_the_check_notices_a_broken_unit(units: Path, tmp_path: Path) -> None:
    text = (units / "ctxd.service").read_text().replace("WatchdogSec=30", "WatchdogSec=soon")
    (units / "ctxd.service").write_text(text)
    if ANALYZE is None:
        assert parse(text)["Service"]["WatchdogSec"] == "soon"
        return
    result = analyze(tmp_path, "verify", "--user", str(units / "ctxd.service"))
    assert any("ctxd" in line and "soon" in line for line in result.stderr.splitlines())


@pytest.mark.parametrize("name", ["ctxd.service", "ctxd@.service"])
def test_a_service_keeps_its_promises(units: Path, name: str) -> None:
    service = parse((units / name).read_text())["Service"]
    assert service["Type"] == "notify"
    assert service["WatchdogSec"] == "30"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "75 78", "a held home or a broken config: no loop of restarts"
    assert service["UMask"] == "0077"
    assert service["NoNewPrivileges"] == "yes"


@pytest.mark.parametrize(
    ("name", "path", "folder_mode"),
    [
        ("ctxd.socket", "%t/contextinfinity/ctxd.sock", "0700"),
        ("ctxd@.socket", "/run/contextinfinity/%i/ctxd.sock", "0755"),
    ],
)
def test_a_socket_belongs_to_one_user(units: Path, name: str, path: str, folder_mode: str) -> None:
    socket = parse((units / name).read_text())["Socket"]
    assert socket["ListenStream"] == path
    assert socket["SocketMode"] == "0600"
    assert socket["DirectoryMode"] == folder_mode


def test_the_system_template_is_hardened(units: Path, tmp_path: Path) -> None:
    service = parse((units / "ctxd@.service").read_text())["Service"]
    assert service["User"] == "%i"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["StateDirectoryMode"] == "0700"
    if ANALYZE is None:
        return
    threshold = f"--threshold={EXPOSURE * 10:.0f}"
    result = analyze(tmp_path, "security", "--offline=true", threshold, str(units / "ctxd@.service"))
    assert result.returncode == 0, result.stdout[-500:]
    soft = (units / "ctxd@.service").read_text().replace("ProtectSystem=strict\n", "").replace("PrivateDevices=yes\n", "")
    (units / "soft@.service").write_text(soft.replace("SystemCallFilter=@system-service\n", ""))
    worse = analyze(tmp_path, "security", "--offline=true", threshold, str(units / "soft@.service"))
    assert worse.returncode != 0, "the threshold must be able to fail"


def plist(text: str) -> dict[str, object]:
    loaded: dict[str, object] = plistlib.loads(text.encode())
    return loaded


def test_the_launch_agent_restarts_after_a_crash_only() -> None:
    agent = plist((templates("launchd") / f"{services.LABEL}.plist").read_text(encoding="utf-8"))
    assert agent["Label"] == services.LABEL
    assert agent["ProgramArguments"] == ["@CTXD@", "--home", "@HOME@"]
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["Umask"] == 0o077
    assert "EnvironmentVariables" not in agent


def test_no_file_holds_a_secret_or_an_open_door() -> None:
    for kind in ("systemd", "launchd"):
        for source in templates(kind).iterdir():
            text = source.read_text(encoding="utf-8")
            assert not [word for word in SECRETS if word.lower() in text.lower()], source.name


def test_rendering_fills_every_placeholder_and_quotes_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "unit_folder", lambda: tmp_path / "units")
    home = tmp_path / 'my "100%" $home'
    files = rendered(home, "/opt/a b/ctxd")
    assert {path.name for path in files} == {"ctxd.service", "ctxd.socket"}
    for path, text in files.items():
        assert "@" not in text, path
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert '"/opt/a b/ctxd" --home' in files[tmp_path / "units" / "ctxd.service"]
    assert "100%%" in files[tmp_path / "units" / "ctxd.service"], "a bare % would be a specifier"
    assert "$$home" in files[tmp_path / "units" / "ctxd.service"], "a bare $ would be a variable"
    assert services.serves(home)
    assert not services.serves(tmp_path)


def test_a_home_of_its_own_gets_a_socket_of_its_own(tmp_path: Path) -> None:
    usual = next(t for p, t in rendered(home_of(None, {"HOME": str(Path.home())}), "/bin/ctxd").items() if "socket" in p.name)
    other = next(t for p, t in rendered(tmp_path, "/bin/ctxd").items() if "socket" in p.name)
    assert "ListenStream=%t/contextinfinity/ctxd.sock" in usual
    assert f"ListenStream={tmp_path}/run/ctxd.sock" in other


def test_on_macos_the_agent_is_rendered_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "is_macos", lambda: True)
    monkeypatch.setattr(services, "unit_folder", lambda: tmp_path)
    home = tmp_path / "R&D <home>"
    ((path, text),) = rendered(home, "/opt/ctxd").items()
    agent = plist(text)
    assert agent["ProgramArguments"] == ["/opt/ctxd", "--home", str(home)]
    assert agent["StandardErrorPath"] == f"{home}/logs/ctxd.log"
    path.write_text(text)
    assert services.serves(home)
    assert not services.serves(tmp_path)
    assert services.start_command()[:2] == ["launchctl", "kickstart"]
