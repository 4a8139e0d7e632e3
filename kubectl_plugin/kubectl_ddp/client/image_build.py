"""Build and push of a job's image, for ``submit --build``, with the tool that this machine has.

:func:`build_image` runs docker, podman or buildah. The output of the tool goes to stderr, because stdout is for data.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final

from kubectl_ddp.errors import DdpError, NotFound, PreflightFailed, UsageError

TOOLS: Final = ("docker", "podman", "buildah")
"""Tools in the order of preference, as in the Makefile."""
DOCKERFILE: Final = "Dockerfile"
TAG_LETTERS: Final = 12
"""Length of a tag that is made from the image's id, in hexadecimal digits."""
_STDERR: Final = 2


def build_image(image: str, directory: Path) -> str:
    """Build and push an image, and return its reference, with the pushed digest if the tool reports one.

    Args:
        image: Repository, such as ``registry.example.com/team/train``. Without a tag, the tag is the start of
            the image's id, which an unchanged build keeps.
        directory: Directory with the Dockerfile, and context of the build.

    Raises:
        UsageError: If the image names a digest.
        NotFound: If the Dockerfile is missing.
        PreflightFailed: If this machine has no tool.
        DdpError: If the build or the push fails.
    """
    if "@" in image:
        raise UsageError(
            f"--build cannot push to '{image}', because a digest names one image.",
            hint="Name a repository or a tag with --image.",
        )
    if not (directory / DOCKERFILE).is_file():
        raise NotFound(
            f"There is no '{directory / DOCKERFILE}' to build.",
            hint="'kubectl ddp init' writes one; --build=DIR names another directory.",
        )
    tool = _find_tool()
    with tempfile.TemporaryDirectory() as scratch:
        id_file = Path(scratch, "id")
        # By default, buildah alone gives an unchanged image a new id.
        cached = ["--layers"] if PurePath(tool).name == "buildah" else []
        _run(
            [tool, "build", *cached, f"--iidfile={id_file}", str(directory)],
            f"'{directory / DOCKERFILE}' was not built",
        )
        image_id = id_file.read_text(encoding="utf-8").strip().removeprefix("sha256:")
        tagged = image if ":" in image.rpartition("/")[2] else f"{image}:{image_id[:TAG_LETTERS]}"
        _run([tool, "tag", image_id, tagged], f"The image was not tagged as '{tagged}'")
        digest = _push(tool, tagged, Path(scratch, "digest"))
    return f"{tagged}@{digest}" if digest else tagged


def _find_tool() -> str:
    """Return the path of the first tool on PATH. Raises PreflightFailed."""
    for name in TOOLS:
        if path := shutil.which(name):
            return path
    raise PreflightFailed(
        f"--build needs {', '.join(TOOLS[:-1])} or {TOOLS[-1]}, and none is on PATH.",
        hint="Install one, or leave --build out: --image names an existing image, and --code DIR sends your code.",
    )


def _push(tool: str, tagged: str, digest_file: Path) -> str:
    """Push an image and return the digest that the registry has, or an empty string."""
    failure = f"'{tagged}' was not pushed"
    if PurePath(tool).name != "docker":
        _run([tool, "push", f"--digestfile={digest_file}", tagged], failure)
        return digest_file.read_text(encoding="utf-8").strip() if digest_file.exists() else ""
    _run([tool, "push", tagged], failure)
    inspect = [tool, "image", "inspect", "--format={{range .RepoDigests}}{{println .}}{{end}}", tagged]
    pushed = subprocess.run(inspect, stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    repository = tagged.rpartition(":")[0]
    return next((reference.partition("@")[2] for reference in pushed if reference.startswith(f"{repository}@")), "")


def _run(words: Sequence[str], failure: str) -> None:
    """Run a tool with its output on stderr. Raises DdpError if it fails."""
    name = PurePath(words[0]).name
    try:
        code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=_STDERR, check=False).returncode
    except OSError as error:
        raise DdpError(f"{failure}: {name} cannot be run: {error.strerror}.", hint="Repair it or remove it.") from None
    if code:
        raise DdpError(
            f"{failure}: '{name} {words[1]}' ended with exit code {code}.", hint=f"The output of {name} has the cause."
        )
