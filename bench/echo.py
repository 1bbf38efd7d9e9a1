"""A bare trio server that sends back what it gets: what a round trip costs before anybody does any work.

`python -m bench.echo SOCKET` runs it in a process of its own.
"""

import socket
import sys

import trio


async def serve(path: str) -> None:
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(path)
    listener.listen()
    await trio.serve_listeners(echo, [trio.SocketListener(listener)])


async def echo(stream: trio.SocketStream) -> None:
    async for chunk in stream:
        await stream.send_all(chunk)


if __name__ == "__main__":
    trio.run(serve, sys.argv[1])
