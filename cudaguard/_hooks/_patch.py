"""Replace attributes of other people's modules, and put them back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

MISSING = object()


class Patches:
    """The replacements of one room of hooks, in the order they were made."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any, Any]] = []
        self.unwatched: list[str] = []

    def wrap(self, module: str, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `module.name` by `make(original)`. A name that this release lacks is noted as not watched."""
        holder = sys.modules.get(module)
        original = getattr(holder, name, MISSING) if holder is not None else MISSING
        if original is MISSING:
            self.unwatched.append(f"{module}.{name}")
        else:
            self.put(holder, name, make(original))

    def put(self, holder: Any, name: str, new: Any) -> None:
        """Replace an attribute that exists."""
        self._made.append((holder, name, getattr(holder, name), new))
        setattr(holder, name, new)

    def put_static(self, holder: Any, name: str, new: Any) -> None:
        """Replace a static method of a class, such as __new__: read back through the class it is a plain function."""
        self._made.append((holder, name, vars(holder)[name], new))
        setattr(holder, name, staticmethod(new))

    def made(self, module: str) -> list[Any]:
        """What stands in for names of a module now."""
        return [new for holder, _, _, new in self._made if getattr(holder, "__name__", "") == module]

    def names(self) -> list[str]:
        """What is replaced now, as `module.name`."""
        return [f"{getattr(holder, '__name__', holder)}.{name}" for holder, name, _, _ in self._made]

    def restore(self) -> None:
        """Put back what is still ours. What somebody replaced after us stays: our part of it passes everything on."""
        for holder, name, original, new in reversed(self._made):
            if getattr(holder, name, MISSING) is new:
                setattr(holder, name, original)
        self._made.clear()
        self.unwatched.clear()
