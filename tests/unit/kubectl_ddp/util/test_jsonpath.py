"""Templates of ``-o jsonpath``: what kubectl would print, or a refusal."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.jsonpath import parse_path, parse_template, sort_by_path

STATE: Final[dict[str, Any]] = {"apiVersion": "cli.ddp/v1", "kind": "JobState"}
RANKS: Final = [{"rank": 0}, {"rank": 1}, {"rank": 2}]
ITEMS: Final = [
    STATE | {"name": "a", "step": 3, "labels": {"example.com/team": "x"}, "ranks": RANKS, "queue": None},
    STATE | {"name": "b", "step": None, "labels": {}, "ranks": [], "queue": {"name": "team"}},
]
LIST: Final = STATE | {"kind": "JobStateList", "items": ITEMS}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        *(("{.items[*].name}", "a b"), ("{items[0].name}", "a"), ("{.items[-1].name}", "b"), ("{.items[9].name}", "")),
        *(
            (f"{{.items[0].ranks[{part}].rank}}", found)
            for part, found in (("0:2", "0 1"), ("::2", "0 2"), ("-1:", "2"))
        ),
        ("{.items[0]['labels']['example.com/team']}", "x"),
        (r"{.items[0].labels.example\.com/team}", "x"),
        ("{.items[0].labels.*}", "x"),
        *(("{.items[*].step}", "3 "), ("{.items[1].queue}", '{"name":"team"}'), ("{.items[*].queue.name}", "team")),
        ("names: {.items[*].name}.", "names: a b."),
        (r"{range .items[*]}{.name}{'\t'}{.step}{" + r'"\n"' + "}{end}", "a\t3\nb\t\n"),
        ("{range .items[*]}{range .ranks[*]}{.rank},{end};{end}", "0,1,2,;;"),
        ("{range .items[*]}{$.kind} {@.name} {end}", "JobStateList a JobStateList b "),
        *(
            (f"{{.items[?(@.{test})].name}}", found)
            for test, found in (("step>2", "a"), ("step!=3", "b"), ("name=='b'", "b"))
        ),
        ('{.items[?(@.queue.name=="team")].name}', "b"),
        ("{.items[?(@.labels['example.com/team'])].name}", "a"),
        ("{'}'}{'it\\'s'}", "}it's"),
    ],
)
def test_a_template_prints_what_kubectl_would(template: str, text: str) -> None:
    assert parse_template(template).render(LIST) == text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{..name}", "'..name'"),
        ("{.items[0,1]}", "'[0,1]'"),
        ("{.items[*]['name','step']}", "'['name','step']'"),
        ("{.items[(@.length-1)]}", "not supported"),
        ("{.items[?(@.name=~'a')]}", "not supported"),
        ("{.items[?(@.name==a)]}", "'a', which is neither a number nor a text in quotes"),
        ("{.items[::0]}", "not supported"),
        *((template, "counterpart") for template in ("{.items", "{.items}}", "{'a}")),
        *((template, "empty path") for template in ("{}", "{range}{end}")),
        ("{range .items[*]}{.name}", "without '{end}'"),
        ("{end}", "without '{range ...}'"),
        (".items[*].name", "no path in braces"),
    ],
)
def test_a_template_that_is_not_supported_is_refused(template: str, problem: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_template(template)
    assert template in refused.value.message
    assert problem in refused.value.message


@pytest.mark.parametrize(("path", "meant"), [(".items[0].nam", "'name'"), (".item", "'items'"), (".x", "apiVersion")])
def test_a_field_that_an_object_cannot_have_is_an_error(path: str, meant: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_path(path).find(LIST)
    assert meant in refused.value.hint


def test_a_sort_puts_missing_values_first_and_numbers_before_text() -> None:
    values = [{"a": "x"}, {"a": 10}, {"a": 9.5}, {}, {"a": None}, {"a": "b"}]
    assert sort_by_path(values, parse_path(".a")) == [3, 4, 2, 1, 5, 0]
