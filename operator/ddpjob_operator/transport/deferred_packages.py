"""Imports of a package's modules without the code of its `__init__.py`, until someone uses what that code defines.

`kubernetes/__init__.py` imports the synchronous client with urllib3, requests and oauthlib. No command uses them, and they
took a quarter of the CPU time of importing ddpjob.client.
"""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def defer(name: str) -> None:
    """Enter a package into sys.modules so that its own code runs when one of its attributes is read that does not exist yet.

    Other users of the package in this process see no difference: `import kubernetes; kubernetes.client` runs that code.
    Nothing happens if the package has been imported or does not exist.
    """
    spec = find_spec(name) if name not in sys.modules else None
    if spec is None:
        return
    package = module_from_spec(spec)
    package.__class__ = _DeferredPackage
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


class _DeferredPackage(ModuleType):
    """A package that has not run yet. Its modules can be imported, since its `__path__` is set."""

    def __getattr__(self, name: str) -> Any:
        module = sys.modules.get(f"{self.__name__}.{name}")
        if module is not None:  # it is being imported, and becomes an attribute at the end of that
            return module
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]  # its own code runs once
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)
