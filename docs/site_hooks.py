"""The site has the files that its pages link to, so that the same links work on a code host.

Files outside docs become pages under repository/: Markdown as it is, notebooks with their pictures,
other files as code, and folders as lists of files.
"""

import json
import os
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|data:|#)([^)#\s]+)(?=[)#])")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[([](.*?)\\[)\]]</\1>', re.S)
PICTURES = {".png", ".svg"}
LISTED = {".ipynb", ".md", ".py", ".yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file that a page links to, also the pages that are added here."""
    pages = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    while pages:
        page = pages.pop()
        text = page_text(page) if page.is_dir() or page.suffix == ".md" else None
        for link in LINK.findall(text or ""):
            path = Path(os.path.normpath(page.parent / link))
            uri = site_uri(path)
            if path.exists() and uri not in files.src_uris:
                content = page_text(path)
                kind = {"abs_src_path": str(path)} if content is None else {"content": content}
                files.append(File.generated(config, uri, **kind))
                pages.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let the links lead to the pages of the site."""
    uri = page.file.src_uri
    folder = ROOT / "docs" / Path(uri).parent
    if uri.startswith("repository/"):
        folder = (ROOT / uri.removeprefix("repository/")).parent

    def site_link(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / link[0]))
        return os.path.relpath(site_uri(path), Path(uri).parent) if path.exists() else link[0]

    return LINK.sub(site_link, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show formulas as MathML, which browsers draw without scripts."""
    displays = {"div": "block", "span": "inline"}
    return FORMULA.sub(lambda x: convert(unescape(x[2]), display=displays[x[1]]), html)


def site_uri(path: Path) -> str:
    """The place of a file of the repository in the site."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    name = f"repository/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix in {".md", *PICTURES} else f"{name}.md"


def page_text(path: Path) -> str | None:
    """A file as Markdown; None: a picture."""
    if path.suffix in PICTURES:
        return None
    if path.suffix == ".md":
        return re.sub(r"\A---\n.*?\n---\n", "", path.read_text("utf-8"), flags=re.S)
    # The search finds pages, and not code.
    options = "---\nsearch: {exclude: true}\n---\n"
    title = f"{options}# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        files = sorted(file for file in path.glob("[!_.]*") if file.suffix in LISTED)
        return title + "".join(f"- [{file.name}]({path.name}/{file.name})\n" for file in files)
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        return options + "\n\n".join(map(cell_text, json.loads(text)["cells"]))
    return f"{title}````{path.suffix[1:]}\n{text}\n````"


def cell_text(cell: dict[str, Any]) -> str:
    """A cell of a notebook as Markdown, with what it printed and drew."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            parts.append(f"![Output](data:image/png;base64,{data['image/png'].strip()})")
        else:
            printed = "".join(output.get("text", data.get("text/plain", "")))
            parts.append(f"```\n{printed}\n```")
    return "\n\n".join(parts)
