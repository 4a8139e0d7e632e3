"""Shell completion of ``ddp-launch``: its flags, and files for everything else.

torchrun has the same flag since torch 2.14, and asks for a package besides; this needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SHELLS: Final = ("bash", "zsh", "tcsh")
"""Those that torchrun names."""

_PROGRAM: Final = "ddp-launch"

_ZSH: Final = """#compdef {program}
_ddp_launch() {{ _arguments {arguments} '*::script:_files' }}
# Found by zsh in a folder of $fpath under this name, or read in by `source`.
if [[ $funcstack[1] == _{program} ]]; then _ddp_launch; else compdef _ddp_launch {program}; fi"""


def script(shell: str, flags: Mapping[str, bool]) -> str:
    """What the shell is to read; ``flags`` says of each whether a value follows.

    >>> script("bash", {"--tee": True, "--standalone": False})
    "complete -o default -o bashdefault -W '--tee --standalone' ddp-launch"
    """
    if shell == "zsh":
        arguments = " ".join(f"'{name}{':value:_files' if takes_value else ''}'" for name, takes_value in flags.items())
        return _ZSH.format(program=_PROGRAM, arguments=arguments)
    if shell == "tcsh":
        return f"complete {_PROGRAM} 'c/--/({' '.join(name.removeprefix('--') for name in flags)})/' 'n/*/f/'"
    return f"complete -o default -o bashdefault -W '{' '.join(flags)}' {_PROGRAM}"
