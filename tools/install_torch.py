"""Install torch for the demo and the tests: the CPU build if there is one, with its size before the download.

``python tools/install_torch.py PIP-ARGUMENTS``, with the Python of the environment. On Linux, torch's wheels on the
public package index hold CUDA and gigabytes of libraries. CPU builds in torch's own index have a tenth of the size.
It serves if pip's settings lead to no CPU build. ``TORCH_INDEX`` names another index; if it is empty, pip's settings
alone count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
TIMEOUT_SECONDS: Final = 5.0


def main() -> None:
    """Choose an index, print what is downloaded, and install. Exits like pip."""
    arguments = sys.argv[1:]
    wheels = wheels_to_install(arguments)
    if sys.platform == "linux" and wheels and not is_cpu_build(wheels):
        index = os.environ.get("TORCH_INDEX", CPU_INDEX)
        if index and is_reachable(f"{index}/torch/"):
            from_index = [*arguments, "--extra-index-url", index]
            if found := wheels_to_install(from_index):
                arguments, wheels = from_index, found
    if wheels:
        print(describe_download(wheels), flush=True)
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
        sys.exit(subprocess.run([*command, *arguments, "torch"], check=False).returncode)


def wheels_to_install(arguments: list[str]) -> list[dict[str, Any]]:
    """Return pip's report on torch and what it needs, one entry per package that is not installed."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run", "--quiet"]
    done = subprocess.run([*command, "--report", "-", *arguments, "torch"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"pip failed with exit code {done.returncode}.")
    entries: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return entries


def is_cpu_build(wheels: list[dict[str, Any]]) -> bool:
    """Return whether none of the wheels is a library of CUDA."""
    return not any(wheel["metadata"]["name"].startswith("nvidia-") for wheel in wheels)


def describe_download(wheels: list[dict[str, Any]]) -> str:
    """Return what is downloaded, from where, and its size."""
    torch = next((wheel for wheel in wheels if wheel["metadata"]["name"] == "torch"), wheels[0])
    url = urlsplit(torch["download_info"]["url"])
    megabytes = sum(size_of(wheel["download_info"]["url"]) for wheel in wheels) / 1e6
    kind = "a CPU build" if is_cpu_build(wheels) else "a build for CUDA, as no CPU build was found"
    disk = "1.0 GB on disk" if is_cpu_build(wheels) else "4.9 GB on disk; TORCH_INDEX=URL names an index of CPU builds"
    version = torch["metadata"]["version"]
    source = url.hostname or unquote(url.path)
    return f"Installing torch {version}, {kind}, from {source}: {megabytes:.0f} MB with what it needs, {disk}."


def size_of(url: str) -> int:
    """Return the size of a wheel in bytes; 0 if it is unknown."""
    if url.startswith("file:"):
        return Path(unquote(urlsplit(url).path)).stat().st_size
    try:
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - an address that pip has chosen
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            return int(answer.headers.get("Content-Length") or 0)
    except OSError:
        return 0


def is_reachable(url: str) -> bool:
    """Return whether an index can be reached."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):  # noqa: S310
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
