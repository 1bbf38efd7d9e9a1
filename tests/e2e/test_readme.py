"""The README's script works as it stands; where socat is missing, a stand-in of the same manners takes its place."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parent.parent.parent
SOCAT = """#!{python}
import shutil, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[-1].partition(":")[2])
sock.sendall(sys.stdin.buffer.read())
sock.shutdown(socket.SHUT_WR)
shutil.copyfileobj(sock.makefile("rb"), sys.stdout.buffer)
"""


def test_the_script_in_the_readme_runs(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    script, more = re.findall(r"```sh\n(.*?)```", readme[readme.index("## From a script") :], re.DOTALL)[:2]
    tools = tmp_path / "tools"
    tools.mkdir()
    if shutil.which("socat") is None:
        (tools / "socat").write_text(SOCAT.format(python=sys.executable))
        (tools / "socat").chmod(0o755)
    with Daemon(tmp_path) as d:
        path = f"{tools}:{Path(sys.executable).parent}:{d.env['PATH']}"
        env = d.env | {"CTX_HOME": str(d.home), "PATH": path}
        result = subprocess.run(
            ["sh", "-eu", "-c", script + more], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Noted. Your words are kept")
    assert '"Summarise the log."' in result.stdout, "turn.list shows what was said"
