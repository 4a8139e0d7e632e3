"""Results of Inductor's probes of the processor, kept in the compile cache.

For each instruction set, Inductor loads a small library in a subprocess that imports torch. On a CPU that is most of
the time of a warm start. The launcher's directory belongs to one kind of machine, so a probe that has passed there
passes again.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

PROBES: Final = "isa-probes"
"""Directory of empty files, one for each probe that has passed."""


def reuse_isa_probes(cache: Path) -> None:
    """Make Inductor skip the probes that have passed with this cache; a failed probe is repeated by each process.

    Without effect where torch has no such probe: Inductor then does as it likes.

    Args:
        cache: Inductor's cache directory, of this kind of machine only.
    """
    try:
        from torch._inductor.cpu_vec_isa import VecISA  # noqa: PLC0415 - takes a second, and only --compile needs it

        probe, build_arch_flags = VecISA.check_build, VecISA.build_arch_flags
    except (ImportError, AttributeError):
        return
    if probe.__module__ == __name__:
        return  # done for an earlier group of this process

    def check_build(self: Any, code: str) -> bool:
        flags = getattr(self, build_arch_flags.__name__)()
        passed = cache / PROBES / hashlib.sha256(f"{flags}\n{code}".encode()).hexdigest()
        if passed.exists():
            return True
        answer = probe(self, code)
        if answer:
            with suppress(OSError):
                passed.parent.mkdir(parents=True, exist_ok=True)
                passed.touch()
        return answer

    VecISA.check_build = check_build  # type: ignore[method-assign] # torch has no setting that covers all probes
