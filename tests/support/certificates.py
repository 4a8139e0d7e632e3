"""Certificates for servers of tests, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REASON = "openssl makes the certificate"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason=REASON)
NEW_KEY = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def self_signed(folder: Path) -> Path:
    """A certificate of 127.0.0.1 that no authority has signed, with its key; skips without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip(REASON)
    path, key, only = (folder / f"server.{ending}" for ending in ("pem", "key", "crt"))
    name = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*NEW_KEY, *name, "-keyout", key, "-out", only], check=True, capture_output=True)
    path.write_bytes(key.read_bytes() + only.read_bytes())
    return path
