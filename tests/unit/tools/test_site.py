"""The site shows what GitHub shows, where the two read Markdown differently."""

from __future__ import annotations

import markdown

from tools.site.hooks import on_page_content


def test_an_escaped_bar_of_a_table_is_a_bar_and_stays_as_it_is_elsewhere() -> None:
    page = "| Flag `a\\|b` | Values |\n|---|---|\n| `-o` | `json\\|yaml`, a\\|b |\n\nThe pattern `x\\|y` is grep's.\n"
    html = on_page_content(markdown.markdown(page, extensions=["tables"]))
    assert "<th>Flag <code>a|b</code></th>" in html
    assert "<td><code>json|yaml</code>, a|b</td>" in html
    assert "<code>x\\|y</code>" in html
