"""Contents of the code archive of a job."""

from __future__ import annotations

import base64
import io
import tarfile

from kubectl_ddp.render import Code


def opened(code: Code) -> tarfile.TarFile:
    """The archive."""
    return tarfile.open(fileobj=io.BytesIO(base64.b64decode(code.text)))


def names_in(code: Code) -> list[str]:
    """Paths of its files, sorted."""
    with opened(code) as archive:
        return sorted(archive.getnames())
