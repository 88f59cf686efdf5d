"""`forbid_init`: whoever initialises CUDA inside it hears of it at that line.

Beside the line, as the front doors are: it turns the guard on where it is off.
"""

from __future__ import annotations

import functools
import sys

from . import _activate, _config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
    from types import TracebackType
    from typing import Any, ParamSpec, TypeVar

    from ._activate import Handle
    from ._hooks._refuse import Block
    from .errors import CudaInitError

    P = ParamSpec("P")
    R = TypeVar("R")

GENERATOR, COROUTINE, ASYNC_GENERATOR = 0x20, 0x80, 0x200  # co_flags; importing inspect for them takes ten milliseconds


class forbid_init:  # used as a function is: in `with`, or above `def`
    """Forbid initialising and querying CUDA, in a `with` or above a function; in every thread of this process.

    The line that would initialise CUDA, or ask the driver (`is_available`, `device_count`), raises instead, also where there is no GPU,
    in every mode and if the guard is off. What wakes the driver where Python cannot see it (a C library) is told at the end of the import
    that did it, else at the end of the block, with the two lines it lies between. An exception from inside the block passes untouched.

    Above an async function or a generator it forbids what that function's own code does, not what others do while it waits; in a `with`,
    all that happens until its end. Children are judged by themselves. Where CUDA was initialised before the block, nothing inside is an
    event: entering then warns (RuntimeWarning). `CUDAGUARD=off` in the environment forbids nothing.

    Args:
        allow_queries: let questions pass: `is_available`, `device_count`, `get_arch_list`.

    Raises CudaInitError (slug `forbidden-init`). After the block, `refused` lists what was raised inside, caught there or not.
    """

    def __init__(self, *, allow_queries: bool = False) -> None:
        self.allow_queries = allow_queries
        self.by = ""  # who forbids, where it is not the line with this block
        self.refused: list[CudaInitError] = []
        self._entered: list[tuple[Block | None, Handle | None]] = []

    def __enter__(self) -> forbid_init:
        handle = _activate.enable("record") if _config.current().mode == "off" else None
        from ._hooks import _refuse

        _warn(_refuse.already())
        block = _refuse.enter(self.allow_queries, self.by)
        if block is not None:
            self.refused = block.refused
        self._entered.append((block, handle))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        from ._hooks import _refuse

        block, handle = self._entered.pop()
        unseen = _refuse.leave(block) if block is not None else None
        if handle is not None:
            handle.disable()
        if unseen is not None and error is None:
            raise unseen

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, forbidden to initialise CUDA each time it runs."""
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        for flag, make in MAKERS.items():
            if flags & flag:
                made: Any = make(self._again, function)
                return functools.update_wrapper(made, function)

        @functools.wraps(function)
        def forbidden(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._again():
                return function(*args, **kwargs)

        return forbidden

    def _again(self) -> forbid_init:
        return type(self)(allow_queries=self.allow_queries)


def _warn(where: str | None) -> None:
    if where:
        import warnings

        text = f"forbid_init: CUDA was initialised already, {where}; initialising it again inside this block is no event"
        warnings.warn(text, RuntimeWarning, stacklevel=_depth())


def _depth() -> int:
    """How far up the stack the first frame outside the guard is, for a caller of this function's caller's."""
    from . import _places

    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and _places.kind(frame.f_code.co_filename) == _places.GUARD:
        frame, depth = frame.f_back, depth + 1
    return depth


def _generator(again: Callable[[], forbid_init], function: Callable[..., Any]) -> Callable[..., Any]:
    def forbidden(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _steps(again, function(*args, **kwargs)))

    return forbidden


def _coroutine(again: Callable[[], forbid_init], function: Callable[..., Any]) -> Callable[..., Any]:
    async def forbidden(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(again, function(*args, **kwargs))

    return forbidden


def _async_generator(again: Callable[[], forbid_init], function: Callable[..., Any]) -> Callable[..., Any]:
    async def forbidden(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        inner = function(*args, **kwargs)
        step = inner.asend(None)
        try:
            while True:
                try:
                    value = await _awaited(again, step)
                except StopAsyncIteration:
                    return
                try:
                    step = inner.asend((yield value))
                except Exception as error:  # thrown in by the consumer
                    step = inner.athrow(error)
        finally:
            await _awaited(again, inner.aclose())

    return forbidden


MAKERS = {GENERATOR: _generator, COROUTINE: _coroutine, ASYNC_GENERATOR: _async_generator}


def _awaited(again: Callable[[], forbid_init], inner: Any) -> Awaitable[Any]:
    import types

    return types.coroutine(_steps)(again, inner)


def _steps(again: Callable[[], forbid_init], inner: Any) -> Generator[Any, Any, Any]:
    """Run a generator or an awaitable to its end, and forbid only while its own code runs."""
    step = functools.partial(inner.send, None)
    while True:
        try:
            with again():
                out = step()
        except StopIteration as end:
            return end.value
        try:
            step = functools.partial(inner.send, (yield out))
        except GeneratorExit:
            with again():
                inner.close()
            raise
        except BaseException as error:
            step = functools.partial(inner.throw, error)
