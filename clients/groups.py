"""Background tasks for the length of a block, without exception groups for whoever writes the block.

The typed client and the commands use it wherever something must be read while something else is awaited.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from anyio import create_task_group
from anyio.abc import TaskGroup


@asynccontextmanager
async def background() -> AsyncIterator[TaskGroup]:
    """A task group that is cancelled when the block ends; a single exception leaves it as itself."""
    try:
        async with create_task_group() as group:
            yield group
            group.cancel_scope.cancel()
    except BaseExceptionGroup as group_error:
        leaves = list(_leaves(group_error))
        # Several tasks fail alike when the connection is lost: that is one failure, not many.
        if len({type(leaf) for leaf in leaves}) == 1:
            raise leaves[0] from None
        raise


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
