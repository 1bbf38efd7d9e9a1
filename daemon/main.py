"""The `ctxd` command: arguments, logging, exit codes. Everything alive is built in `app.py`.

It runs in the foreground, prints nothing on stdout, and stops cleanly on SIGTERM and SIGINT.
"""

import argparse
import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextinfinity.daemon.home import Home

BUSY, CONFIG = 75, 78
"""Exit codes of sysexits.h: try again later (another daemon has the home), and a configuration that cannot be used."""


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ctxd",
        description="The ContextInfinity daemon: conversations without end, over JSON-RPC.",
        epilog="examples:\n  ctxd                        serve ~/.contextinfinity\n"
        "  ctxd --home /tmp/try        serve another home\n"
        "  ctxd --websocket 8765       also listen on ws://127.0.0.1:8765/rpc",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--home", metavar="DIR", help="home folder (default: CTX_HOME, then ~/.contextinfinity)")
    parser.add_argument("--socket", metavar="PATH", help="Unix socket (default: CTX_SOCKET, then the runtime folder)")
    parser.add_argument("--config", metavar="FILE", help="configuration (default: config.toml in the home)")
    parser.add_argument("--websocket", metavar="PORT", type=int, help="also serve a websocket on this loopback port")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--read-only", action="store_true", help="answer questions, change nothing")
    parser.add_argument("--restore", metavar="FILE", help="put a backup in the database's place, then exit")
    parser.add_argument("--install-model", metavar="NAME", help="fetch and verify a local embedding model, then exit")
    parser.add_argument("--from", dest="source", metavar="FILE", help="with --install-model: take it from this file or folder")
    parser.add_argument("--check-config", action="store_true", help="say whether the configuration is valid, then exit")
    parser.add_argument("--version", action="version", version=version("contextinfinity"))
    return parser.parse_args(argv)


def main() -> None:
    options = arguments(sys.argv[1:])
    logging.basicConfig(
        stream=sys.stderr, level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("trio-websocket", "httpx", "httpx2", "httpcore2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    sys.exit(serve(options))


def serve(options: argparse.Namespace) -> int:
    import trio

    from contextinfinity.daemon import config as configuration
    from contextinfinity.daemon.app import App
    from contextinfinity.daemon.home import Home, HomeBusy, HomeError
    from contextinfinity.daemon.rpc.unix import SocketError
    from contextinfinity.protocol.errors import Fault

    log = logging.getLogger("ctxd")
    os.umask(0o077)
    if options.install_model:
        return install_model(options.install_model, options.source)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a scan is bound by memory, and its threads would spin
    sys.setswitchinterval(0.0005)  # a thread that computes must not keep the event loop waiting
    try:
        home = Home(configuration.resolve_home(options.home, os.environ))
        if not options.check_config:
            home.prepare()
        if options.config:
            home.config = Path(options.config).expanduser().absolute()
            if not home.config.is_file():
                raise configuration.ConfigError(f"{home.config} does not exist")
        flags = {} if options.websocket is None else {"websocket.enabled": True, "websocket.port": options.websocket}
        config = configuration.load(home.config, os.environ, flags)
        if options.check_config:
            return 0
        home.lock()
        if options.restore:
            return restore(home, Path(options.restore).expanduser().absolute())
        chosen = options.socket or os.environ.get("CTX_SOCKET")
        path = Path(chosen).absolute() if chosen else configuration.default_socket(home.path, os.environ)
        app = App(home, config, path, flags, os.environ, read_only=options.read_only)
        trio.run(app.run)
    except HomeBusy as error:
        log.error("%s", error)
        return BUSY
    except configuration.ConfigError as error:
        log.error("%s", error)
        return CONFIG
    except (HomeError, SocketError, Fault) as error:
        log.error("%s", error)
        return 1
    except BaseExceptionGroup as group:
        known = group.subgroup((SocketError, Fault))
        if known is not None:
            log.error("%s", _first(known))
        else:
            log.critical("the daemon failed", exc_info=group)
        return 1
    except OSError as error:
        log.error("%s: %s", error.filename or "the system", error.strerror)
        return 1
    except Exception:
        log.critical("the daemon failed", exc_info=True)
        return 1
    return 0


def install_model(name: str, source: str | None) -> int:
    """Into the store that all homes share; what is said goes to stderr, a line each."""
    from contextinfinity.daemon.embedders import models
    from contextinfinity.daemon.embedders.base import EmbedderError

    shown: dict[str, int] = {}

    def progress(what: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 0
        if shown.get(what) != tenth:
            shown[what] = tenth
            print(f"{what}: {10 * tenth} % of {total / 1e6:.1f} MB", file=sys.stderr, flush=True)  # noqa: T201

    try:
        report = models.install(name, os.environ, progress, Path(source).expanduser() if source else None)
    except EmbedderError as error:
        print(f"ctxd: {error}", file=sys.stderr)  # noqa: T201
        return 1
    if report.missing:
        print(f"ctxd: {source} holds no {' and no '.join(report.missing)} of {name}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"{name} {'was installed already' if report.already else 'is installed'} in {report.folder}", file=sys.stderr)  # noqa: T201
    return 0


def restore(home: "Home", backup: Path) -> int:
    """Replace the database by a backup; the lock makes sure that no daemon has it open."""
    from contextinfinity.daemon.runtime.ids import now
    from contextinfinity.daemon.storage.backup import restore as put_back

    at = now()
    moved = put_back(backup, home.database, home.streams, home.backups / f"replaced-{at.replace(':', '')}", at)
    logging.getLogger("ctxd").info("restored %s%s", backup, f"; what was there is in {moved}" if moved else "")
    return 0


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


if __name__ == "__main__":
    main()
