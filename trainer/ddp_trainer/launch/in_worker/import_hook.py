"""Import hook of a worker: :func:`call_after_import` calls other files of this package after the script has imported a
module. Loaded by path before the script, by any interpreter, so standard library only.
"""

from __future__ import annotations

import importlib.machinery
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost every worker a millisecond
    from collections.abc import Callable
    from typing import Any


def call_after_import(name: str, then: Callable[[Any], None]) -> None:
    """Call ``then`` with the named module: now if it is already imported (by the fork server), else after the script
    imports it.
    """
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, Finder(name, then))


class Finder:
    """Meta path finder that sees the first import of one module and removes itself."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002 - importlib's
        """See :meth:`importlib.abc.MetaPathFinder.find_spec`."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_and_notify(module: Any) -> None:
                run(module)
                self._then(module)

            spec.loader.exec_module = exec_and_notify  # type: ignore[method-assign]
        return spec
