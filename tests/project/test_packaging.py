"""What is installed is what is in the tree: sdist, then wheel from it, compared with the source folders."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("daemon", "clients", "protocol")


@pytest.mark.slow
def test_the_wheel_built_from_the_sdist_has_every_module(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True, timeout=100)
    (sdist,) = tmp_path.glob("*.tar.gz")
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = {
        f"contextinfinity/{path.relative_to(ROOT).as_posix()}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert source
    assert {n for n in names if n.endswith(".py")} == source
    assert any(n.endswith("service_files/systemd/ctxd.service") for n in names)
    assert any(n.endswith(".plist") for n in names)
    assert not any(n.startswith(("tests/", "bench/")) for n in names)
    with tarfile.open(sdist) as archive:
        assert not any("/tests/" in n or "/bench/" in n for n in archive.getnames())


def test_the_repository_root_is_not_importable_twice() -> None:
    import contextinfinity.daemon

    assert contextinfinity.daemon.__name__ == "contextinfinity.daemon"
    assert not (ROOT / "contextinfinity").exists()


def test_the_lock_covers_every_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locked = (ROOT / "requirements.lock").read_text()
    for requirement in project["project"]["dependencies"]:
        name = requirement.split(">")[0].split("=")[0].split("[")[0].strip()
        assert f"\n{name}==" in f"\n{locked}", f"{name} is not locked: run make lock"
    assert "--hash=sha256:" in locked
    assert "http" not in locked.replace("httpx", "").replace("httpcore", ""), "a lock names packages, never a registry"
