"""What a failure means at the shell: one line on stderr and an exit code that a script can rely on."""

import json
import os
import sys
import traceback

import click

from contextinfinity.clients.cli.output import clean
from contextinfinity.clients.errors import ClientError, DaemonUnreachable
from contextinfinity.protocol.errors import (
    BudgetExceeded,
    Cancelled,
    Conflict,
    ContextTooLarge,
    ErrorObject,
    Fault,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    NotFound,
    ProviderError,
)

FAILURE, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130
EXIT_CODES: dict[type[Fault], int] = {
    NotFound: 4,
    Conflict: 5,
    ProviderError: 6,
    ContextTooLarge: 7,
    BudgetExceeded: 7,
    Cancelled: INTERRUPTED,
    InvalidParams: USAGE,
    InvalidRequest: USAGE,
    MethodNotFound: USAGE,
}


def exit_code(error: BaseException) -> int:
    if isinstance(error, Fault):
        return EXIT_CODES.get(type(error), FAILURE)
    if isinstance(error, DaemonUnreachable):
        return UNREACHABLE
    if isinstance(error, UnicodeError):
        return USAGE
    return error.exit_code if isinstance(error, click.ClickException) else FAILURE


def turn_exit_code(error: ErrorObject | None) -> int:
    """Of a turn that failed; one without an error is a success."""
    return 0 if error is None else exit_code(Fault.from_error(error))


def sentence(error: BaseException) -> str:
    """The one line that a person reads."""
    if isinstance(error, Fault):
        return error.message
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, ClientError):
        return str(error)
    if isinstance(error, UnicodeError):
        return "the text is not valid UTF-8; convert it first, for example with iconv"
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    return f"ctx itself failed ({type(error).__name__}: {error}); CTX_DEBUG=1 shows where"


def report(error: BaseException, *, as_json: bool) -> int:
    code = exit_code(error)
    if os.environ.get("CTX_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    message = " ".join(sentence(error).split())
    if as_json:
        data = error.to_error() if isinstance(error, Fault) else ErrorObject(0, message, {"code": "client_error"})
        document = {"error": {"code": data.code, "message": message, "data": data.data}, "exit_code": code}
        print(json.dumps(document), file=sys.stderr)
    else:
        print(f"ctx: {clean(message)}", file=sys.stderr)
    return code
