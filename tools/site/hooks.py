"""Hooks of MkDocs for ``make site``: pages from outside ``docs/``, links as on GitHub, no load from the network.

The Markdown files are also read on GitHub, so they keep its anchors, its links between folders, and words after the
language of a fenced block. The hooks translate these for MkDocs, and fail the build if a page loads from the network.
"""

from __future__ import annotations

import os
import posixpath
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
OUTSIDE: Final = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "charts/ddp-job/README.md": "charts/ddp-job.md",
    "charts/ddp-platform/README.md": "charts/ddp-platform.md",
    "manifests/README.md": "manifests/index.md",
    "manifests/examples/README.md": "manifests/examples.md",
}
"""Page of the repository → its path in the site."""
FOR_WHOM: Final = "For on-call engineers who received this alert. Afterwards you know its cause and what to do."
"""First sentence of each runbook."""
_ORIGIN: Final = {page: path for path, page in OUTSIDE.items()}
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")
_IMAGE: Final = re.compile(r"(!\[[^\]]*\])\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^(\s*```\w+) .*$", re.MULTILINE)
_IN_STYLES: Final = re.compile(r"""(?:url\(|@import\s+)["']?((?:https?:)?//[^"')]+)""")
_CELL: Final = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)
_CODE: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def anchor_of_heading(text: str, separator: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def on_config(config: Any) -> Any:
    """Give headings the anchors of GitHub, and each page the version and the repository at its foot."""
    config.mdx_configs["toc"]["slugify"] = anchor_of_heading
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    repository = config.extra["repository"]
    config.copyright = f"Version {version}" + (f' · <a href="{repository}">Repository</a>' if repository else "")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside of ``docs/``."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests of this module have no MkDocs

    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Translate links to files outside of ``docs/``, and fenced blocks with more than a language.

    Runbooks get :data:`FOR_WHOM` as their first sentence.
    """
    path = page.file.src_uri
    if path.startswith("runbooks/Ddp"):
        markdown = markdown.replace("\n## Meaning", f"\n{FOR_WHOM}\n\n## Meaning", 1)
    origin = _ORIGIN.get(path, f"docs/{path}")
    texts, at = [], 0
    for block in _CODE.finditer(markdown):
        texts += [_translate(markdown[at : block.start()], origin, path), _FENCE.sub(r"\1", block[0])]
        at = block.end()
    return "".join([*texts, _translate(markdown[at:], origin, path)])


def _translate(text: str, origin: str, page: str) -> str:
    def link(found: re.Match[str]) -> str:
        if "://" in found[2] or found[2].startswith("mailto:"):
            return found[0]
        there = _resolve_path(posixpath.normpath(posixpath.join(posixpath.dirname(origin), found[2])))
        # Files outside of the site, such as values of charts, are named and not linked.
        return f"[{found[1]}]({_relative(there, page)}{found[3]})" if there else found[1]

    def image(found: re.Match[str]) -> str:
        if "://" in found[2]:  # a badge; the site loads nothing from the network
            return f"{found[1][2:-1]}."
        there = _resolve_path(posixpath.normpath(posixpath.join(posixpath.dirname(origin), found[2])))
        return f"{found[1]}({_relative(there, page)})" if there else found[0]

    return _IMAGE.sub(image, _LINK.sub(link, text))


def _resolve_path(path: str) -> str | None:
    if path in OUTSIDE:
        return OUTSIDE[path]
    if f"{path}/README.md" in OUTSIDE:
        return OUTSIDE[f"{path}/README.md"]
    if not (ROOT / path).exists():
        return path.removeprefix("docs/")  # MkDocs reports it
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def _relative(there: str, page: str) -> str:
    return posixpath.relpath(there, posixpath.dirname(page) or ".")


def on_page_content(html: str, **_: Any) -> str:
    """Let the keyboard scroll code, leave no header cell without text, and show a table's escaped bars as bars."""
    html = html.replace("<pre>", '<pre tabindex="0">').replace("<th></th>", "<td></td>")
    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's search dialog for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for pages without a source, such as 404.html."""
    return on_post_page(output_content)


class _Loads(HTMLParser):
    """Addresses from which a page loads when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "a" or (tag == "link" and values.get("rel") in {"canonical", "next", "prev"}):
            return
        for name in ("src", "href", "srcset", "data", "action"):
            if re.match(r"(?:https?:)?//", values.get(name) or ""):
                self.found.append(str(values[name]))


def _network_loads(path: Path) -> list[str]:
    if path.suffix == ".html":
        parser = _Loads()
        parser.feed(path.read_text(encoding="utf-8"))
        return parser.found
    return _IN_STYLES.findall(path.read_text(encoding="utf-8")) if path.suffix == ".css" else []


def on_post_build(config: Any) -> None:
    """Fail if a page or a style sheet loads from the network."""
    from mkdocs.exceptions import PluginError  # noqa: PLC0415 - as above

    loads: dict[str, list[str]] = {}
    for folder, _, names in os.walk(config.site_dir):
        for path in (Path(folder, name) for name in names):
            if found := _network_loads(path):
                loads[str(path.relative_to(config.site_dir))] = found
    if loads:
        raise PluginError(f"pages load from the network: {loads}")
