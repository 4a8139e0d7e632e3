"""Shell completion of ``ddp-launch``: its flags, and files for everything else. :func:`script` is the main entry point.

torchrun has the same flag since torch 2.14, but needs an extra package; this module needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SHELLS: Final = ("bash", "zsh", "tcsh")
"""Supported shells, as in torchrun."""

_PROGRAM: Final = "ddp-launch"

_ZSH: Final = """#compdef {program}
_ddp_launch() {{ _arguments {arguments} '*::script:_files' }}
# Found by zsh in a folder of $fpath under this name, or read in by `source`.
if [[ $funcstack[1] == _{program} ]]; then _ddp_launch; else compdef _ddp_launch {program}; fi"""


def script(shell: str, flags: Mapping[str, bool]) -> str:
    """Return the completion script for a shell.

    >>> script("bash", {"--tee": True, "--standalone": False})
    "complete -o default -o bashdefault -W '--tee --standalone' ddp-launch"

    Args:
        shell: One of :data:`SHELLS`.
        flags: Flag → whether it takes a value.
    """
    if shell == "zsh":
        arguments = " ".join(f"'{name}{':value:_files' if takes_value else ''}'" for name, takes_value in flags.items())
        return _ZSH.format(program=_PROGRAM, arguments=arguments)
    if shell == "tcsh":
        return f"complete {_PROGRAM} 'c/--/({' '.join(name.removeprefix('--') for name in flags)})/' 'n/*/f/'"
    return f"complete -o default -o bashdefault -W '{' '.join(flags)}' {_PROGRAM}"
