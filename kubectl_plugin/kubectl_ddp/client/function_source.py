"""A Python function as the script of a job.

The script holds the source of the function alone, as in Kubeflow's SDK. Its module is not sent: that of a notebook is
no file, and each rank would run the top level of a file, which may be the call that submitted the job.

The script imports again what the function uses of other modules: the modules, and names of them. Anything else is
rejected before the job is created: constants and functions of the same module, closures, decorators, lambdas, and
functions whose source is unknown.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final

from kubectl_ddp.code.archive import holds_credentials
from kubectl_ddp.errors import UsageError
from kubectl_ddp.render import Code
from kubectl_ddp.values.program import Script, default_job_name

LARGEST_ARGUMENTS: Final = 120 * 1024
"""Maximum size of all arguments as JSON, in bytes. Linux accepts 128 KiB in one argument of a program."""

_TEMPLATE: Final = '''"""Function {name} of {module}, as a job: every rank calls it with the arguments of the job."""

from __future__ import annotations

{imports}
{source}

if __name__ == "__main__":
    import json as _json
    import sys as _sys

    {name}(**_json.loads(_sys.argv[1]))
'''
_MODULE: Final = "function"
"""Name of a script whose function has a name that no file can have."""
_OF_EVERY_MODULE: Final = frozenset({"__name__", "__file__"})


def code_of_function(function: Callable[..., object]) -> Code:
    """Return the script that calls a function, as the code of a job. Raises UsageError."""
    checked = _checked(function)
    name, source = checked.__name__, _source_of(checked)
    text = _TEMPLATE.format(name=name, module=checked.__module__, source=source, imports=_imports(checked, source))
    # Another name than the function's: beside the script, a function 'random' would hide the module.
    file = f"call_{name if name.isascii() else _MODULE}.py"
    if holds_credentials(file, text.encode()):
        raise UsageError(
            f"The source of {name} would travel in a ConfigMap, and looks like credentials.",
            hint="Pass them with secret_env={...}.",
        )
    return Code(file, text)


def job_name_of(function: Callable[..., object]) -> str:
    """Return a default job name for a function.

    >>> job_name_of(job_name_of)
    'job-name-of'
    """
    return default_job_name(Script(function.__name__))


def arguments_as_json(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    """Return the keyword arguments of a function as JSON. Raises UsageError.

    A value must be equal to what is read from its JSON: a tuple is refused, because the function would get a list.
    """
    for name, value in arguments.items():
        try:
            is_kept = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            is_kept = False
        if not is_kept:
            raise UsageError(
                f"The argument {name} of {function.__name__} is {type(value).__name__}, which JSON does not keep.",
                hint="Give text, numbers, booleans, None, and lists and dicts of them.",
            )
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"{function.__name__} cannot be called with these arguments: {error}.",
            hint="Give each parameter without a default in arguments={...}, by its name.",
        ) from None
    text = json.dumps(arguments)
    if len(text) > LARGEST_ARGUMENTS:
        raise UsageError(
            f"The arguments of {function.__name__} have {len(text)} bytes as JSON, and a program takes at most "
            f"{LARGEST_ARGUMENTS}.",
            hint="Put data into a file on a volume, and pass its path.",
        )
    return text


def _checked(function: Callable[..., object]) -> FunctionType:
    """Return the function. Raises UsageError for anything that is not a plain function."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if not isinstance(function, FunctionType):
        raise UsageError(f"{name} is not a function written with 'def'.", hint="Write one that calls it.")
    if function.__name__ == "<lambda>":
        raise UsageError("The source of a lambda cannot be sent.", hint="Write it with 'def'.")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(f"A call alone does not run {name}.", hint="Write a function without async and yield.")
    if function.__code__.co_freevars:
        used = ", ".join(function.__code__.co_freevars)
        raise UsageError(
            f"{name} uses {used} of the function around it, which does not travel.",
            hint="Pass it as a parameter, with arguments={...}.",
        )
    return function


def _source_of(function: FunctionType) -> str:
    """Return the dedented source of the function. Raises UsageError."""
    name = function.__name__
    try:
        source = textwrap.dedent(inspect.getsource(function))
        [found] = ast.parse(source).body
    except (OSError, SyntaxError, ValueError):
        raise UsageError(
            f"The source of {name} is not known, as of a function typed at Python's prompt.",
            hint="Define it in a file or in a notebook.",
        ) from None
    if not isinstance(found, ast.FunctionDef) or found.name != name:
        raise UsageError(f"The file of {name} has changed since it was imported.", hint="Import it again.")
    if found.decorator_list:
        raise UsageError(f"{name} has a decorator, which does not travel.", hint="Apply it inside of the function.")
    return source


def _imports(function: FunctionType, source: str) -> str:
    """Return import statements for the names of other modules that the function uses. Raises UsageError."""
    known, used = function.__globals__, set(_globals_of(source)) - {function.__name__, *_OF_EVERY_MODULE}
    lines = {name: _import_of(name, known[name], function.__module__) for name in used & known.keys()}
    missing = sorted(name for name in used if not lines.get(name) and (name in known or not hasattr(builtins, name)))
    if missing:
        raise UsageError(
            f"{function.__name__} uses {', '.join(missing)} of its module, which does not travel.",
            hint="Define it inside of the function, pass it as a parameter, or submit the file as a script.",
        )
    found = {line for line in lines.values() if line}
    dotted = {f"import {name}" for name in _qualified_names(source) if f"import {name.partition('.')[0]}" in found}
    return "\n".join(sorted(found | dotted))


def _globals_of(source: str) -> Iterator[str]:
    """Yield the names that a definition reads from its module, defaults included and annotations not."""
    tables = [symtable.symtable(f"from __future__ import annotations\n{source}", "<function>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            is_ours = table.get_type() == "module"
            if (symbol.is_referenced() and not symbol.is_assigned()) if is_ours else symbol.is_global():
                yield symbol.get_name()


def _qualified_names(source: str) -> Iterator[str]:
    """Yield modules that the source reads as attributes, as in ``torch.distributed.checkpoint.save``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in sys.modules:
            yield name


def _import_of(name: str, value: object, own_module: str) -> str:
    """Return the statement that binds a name to a value of another module; empty if there is none.

    >>> _import_of("np", json, "train"), _import_of("loads", json.loads, "train")
    ('import json as np', 'from json import loads')
    """
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    module, attribute = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module in {None, own_module, "__main__"} or getattr(sys.modules.get(str(module)), attribute, None) is not value:
        return ""
    return f"from {module} import {attribute}" + (f" as {name}" if attribute != name else "")
