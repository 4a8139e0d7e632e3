"""Every message that the page explains is printed by our code."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.test_documents import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
MESSAGES = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
TEXTS = {
    node.value
    for folder in ("trainer", "kubectl_plugin", "ddp_preflight", "ddp_report")
    for path in (ROOT / folder).rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
}


def test_the_page_explains_messages() -> None:
    assert len(MESSAGES) > 15
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_the_page_explains_is_in_the_sources(message: str) -> None:
    parts = [part.strip() for part in message.split("…") if part.strip()]
    assert [part for part in parts if not any(part in text for text in TEXTS)] == []
