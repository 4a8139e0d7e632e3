"""Text of users never becomes YAML, and the YAML that we write keeps its values, in kubectl too."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubectl_ddp.render.jinja_env import TEMPLATES, block, environment, fill, to_flow_yaml
from kubectl_ddp.util.yaml_text import to_yaml
from tests.support.jobs import TEXT
from tests.support.programs import captured

LOADERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if yaml.__with_libyaml__ else [])]
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
TRICKY = [
    "", " ", "yes", "No", "on", "y", "N", "null", "~", "1e3", "1E5", "0x1F", "0o17", "017", "1_000", "1:2",
    "12:30:45", ".5", "1.", "+1", "-0", ".inf", ".NaN", "2026-11-21", "=", "<<", "*a", "&a", "!a", "%a", "@a", "`a",
    "#a", "a #b", "a: b", "a:", "- a", "-", "--x=1", "?", "[a]", "{a: b}", "'a'", '"a"', "a\nb", "a\r\nb", "\t",
    "a\\n", "{{ x }}", "{% x %}", "\x85", "\u2028", "\x7f", "\ufeff", "é", "😀", "\U0010ffff", "$(HOME)", "|", ">",
    "---", "...",
]  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__name__)
@given(value=VALUE)
def test_a_quoted_value_is_read_as_itself(loader: Any, value: Any) -> None:
    assert yaml.load(f"key: {to_flow_yaml(value)}\n", Loader=loader) == {"key": value}


@given(st.dictionaries(TEXT, TEXT, min_size=1, max_size=4))
def test_a_block_is_read_as_itself_also_when_indented(value: dict[str, str]) -> None:
    lines = block(value).replace("\n", "\n    ")
    assert yaml.safe_load(f"key:\n    {lines}\n") == {"key": value}


@pytest.mark.parametrize("text", TRICKY, ids=ascii)
def test_tricky_text_survives_both_directions(text: str) -> None:
    assert yaml.safe_load(to_flow_yaml(text)) == text
    assert yaml.safe_load(to_yaml([{"key": text, text: "value"}])) == {"key": text, text: "value"}


CONSTANT = (' ["Ingress"] if egress == "unrestricted" else ["Ingress", "Egress"] ',)


def test_every_value_enters_a_template_through_a_filter_that_quotes() -> None:
    for template in TEMPLATES.glob("*.j2"):
        for expression in re.findall(r"\{\{(.*?)\}\}", template.read_text()):
            is_quoted = re.search(r"\| (quoted|block \| indent\(\d+\)) *$", expression)
            assert is_quoted or expression in CONSTANT, (template.name, expression)


def test_a_name_that_a_template_does_not_know_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        fill("store-service.yaml.j2", {})
    assert environment().undefined is jinja2.StrictUndefined


def test_objects_are_written_one_per_document_and_without_anchors() -> None:
    shared = {"a": "b"}
    text = to_yaml([{"x": shared, "y": shared}, {"z": [shared]}])
    assert text == 'x:\n  a: b\n"y":\n  a: b\n---\nz:\n  - a: b\n'


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_tricky_text_as_we_wrote_it(tmp_path: Path) -> None:
    """Its YAML reader is not ours: a string it took for a number would be refused."""
    texts = {f"k{number}": text for number, text in enumerate(TRICKY)}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": texts}
    file = tmp_path / "configmap.yaml"
    file.write_text(to_yaml([config_map]))
    read = ["kubectl", "label", "--local", "-f", str(file), "any=label", "-o", "json"]
    done = captured(read, check=True, env={"PATH": os.environ["PATH"]})
    assert json.loads(done.stdout)["data"] == texts
