"""Makes docs/course/, the course to read without running it: python docs/make_course.py [NN ...]   (or `make course`)

Every notebook is run in a fresh kernel and written as one page with what it printed and drew; index.html lists them.
With numbers, only these notebooks are run (the index is always made anew). Exercises stay open, solutions stay folded.

A page needs nothing but itself: no script, no style sheet, no font and no address of others. It is light or dark, as
the reader has it, and carries the digest of its notebook, so that a test can tell an old page.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any

import mistune
import nbformat
from nbclient import NotebookClient
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

HERE = Path(__file__).parent
ROOT = HERE.parent
NOTEBOOKS = ROOT / "notebooks"
COURSE = HERE / "course"
STYLE = """
:root { color-scheme: light dark; --soft: rgba(128,128,128,.11); --line: rgba(128,128,128,.35); --accent: #0072b2; }
body { margin: 0 auto; max-width: 66rem; padding: 1rem 1.2rem 4rem; background: Canvas; color: CanvasText;
       font: 16px/1.6 system-ui, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.25; margin: 1.2rem 0 .6rem; } h2 { font-size: 1.35rem; margin: 2.6rem 0 .5rem; }
h3 { font-size: 1.1rem; margin: 2rem 0 .4rem; } p, ul, ol { margin: .6rem 0; max-width: 50rem; } li { margin: .2rem 0; }
a { color: var(--accent); } nav { font-size: .9rem; display: flex; gap: 1.2rem; flex-wrap: wrap; }
pre, code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
code { background: var(--soft); padding: .1em .3em; border-radius: 3px; font-size: .88em; }
pre { margin: 0; font-size: 13px; line-height: 1.45; overflow-x: auto; }
pre code { background: none; padding: 0; font-size: inherit; }
pre.said { white-space: pre-wrap; overflow-wrap: anywhere; }
.code { background: var(--soft); border-left: 3px solid var(--accent); border-radius: 0 4px 4px 0; padding: .6rem .8rem;
        margin: 1rem 0 .4rem; }
.exercise { border-left-color: #d55e00; } .plain { border-left-color: transparent; }
.out { margin: .2rem 0 1rem; padding-left: .9rem; overflow-x: auto; }
.out > * + * { margin-top: .5rem; } .out img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
details { border: 1px solid var(--line); border-radius: 4px; padding: .3rem .8rem; margin: .8rem 0; }
details .code { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; }
main > table, details table { border-collapse: collapse; margin: .8rem 0; font-size: .92rem; display: block;
        overflow-x: auto; }
main > table th, main > table td, details td, details th { border: 1px solid var(--line); padding: .3rem .6rem;
        text-align: left; vertical-align: top; }
@media (prefers-color-scheme: dark) { :root { --accent: #6cb6e8; } }
"""
LIGHT, DARK = "default", "github-dark"  # styles of pygments for code
MIME_TYPES = ("text/html", "image/svg+xml", "image/png", "text/plain")  # the first one that an output has is shown


def execute(path: Path) -> Any:
    """The notebook with its outputs, run where it lies, with its exercises open."""
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(path.parent), env=environment)
    return notebook


def digest(path: Path) -> str:
    """What a page says about the notebook that it was made from."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def page_of(notebook: Any, path: Path, paths: Sequence[Path]) -> str:
    """A notebook with outputs as a page, between its neighbours."""
    body = "\n".join(_cell(cell) for cell in notebook.cells if cell.source.strip())
    body = body.replace(f"{ROOT}/", "")  # an error names its file; where the checkout lay is nobody's business
    links = f"<nav>{_neighbours(path, paths)}</nav>"
    title = re.sub(r"^#\s*", "", notebook.cells[0].source.split("\n")[0])
    return _page(title, f"{links}\n<main>\n{body}\n</main>\n{links}", digest(path))


def index_of(paths: Sequence[Path]) -> str:
    """The list of all pages: number and title, question, time."""
    rows = "\n".join(_index_row(path) for path in paths)
    head = "<tr><th>notebook</th><th>question</th><th>time</th></tr>"
    text = (
        "<h1>verl's V1 trainer, stage by stage</h1><p>Each page is a notebook of kitlib with its outputs. Reading is "
        "half of it: an exercise checks your answer only where the notebook runs. <code>make lab</code> opens the "
        "notebooks. They need two CPU cores and no GPU.</p>"
    )
    return _page("The course", f"<main>{text}\n<table><thead>{head}</thead><tbody>\n{rows}\n</tbody></table></main>")


def _page(title: str, body: str, source: str = "") -> str:
    meta = f'<meta name="notebook" content="{source}">' if source else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width">{meta}<style>{STYLE}{_code_style()}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _code_style() -> str:
    """Colours of code, those of the dark scheme where the reader has it."""
    light, dark = (HtmlFormatter(style=style).get_style_defs(".code") for style in (LIGHT, DARK))
    colours = [re.sub(r"^\.code \{.*?\}|^(pre|td|span)\b.*$", "", rules, flags=re.M) for rules in (light, dark)]
    return f"{colours[0]}\n@media (prefers-color-scheme: dark) {{\n{colours[1]}\n}}\n".replace("\n\n", "\n")


def _cell(cell: Any) -> str:
    if cell.cell_type == "markdown":
        return _prose(cell.source)
    kind = "code exercise" if "exercise" in cell.metadata.get("tags", []) else "code"
    shown = [html for output in cell.outputs if (html := _output(output))]
    outputs = f'\n<div class="out">{"".join(shown)}</div>' if shown else ""
    return f'<div class="{kind}">{_highlighted(cell.source, "python")}</div>{outputs}'


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return f'<pre class="said">{_text(output.text)}</pre>'
    if output.output_type == "error":
        raise SystemExit(f"{output.ename}: {output.evalue}")
    kind = next((kind for kind in MIME_TYPES if kind in output.data), None)
    if kind is None:
        return ""
    if kind == "image/png":
        alternative = escape(output.data.get("text/plain", "a plot"))
        return f'<img alt="{alternative}" src="data:image/png;base64,{"".join(output.data[kind].split())}">'
    if kind == "text/plain":
        return f"<pre>{_text(output.data[kind])}</pre>"
    return f"<div>{output.data[kind]}</div>"


def _text(text: str) -> str:
    """Printed text, without the colours of a terminal."""
    return escape(re.sub(r"\x1b\[[0-9;]*m", "", text))


def _prose(source: str) -> str:
    """Markdown as HTML; links to notebooks lead to their pages."""
    linked = re.sub(r"\]\((\d\d_[a-z0-9_]+)\.ipynb", r"](\1.html", source)
    linked = re.sub(r"\]\(\.\./(?!docs/course/)", "](../../", linked)
    return str(_markdown(linked)).rstrip()


class _Renderer(mistune.HTMLRenderer):
    def block_code(self, code: str, info: str | None = None) -> str:
        kind = "code" if info else "code plain"
        return f'<div class="{kind}">{_highlighted(code, info or "text")}</div>\n'


_markdown = mistune.create_markdown(renderer=_Renderer(escape=False), plugins=["table"])


def _highlighted(code: str, language: str) -> str:
    formatter = HtmlFormatter(nowrap=True)
    return f"<pre><code>{highlight(code, get_lexer_by_name(language), formatter).rstrip()}</code></pre>"


def _neighbours(path: Path, paths: Sequence[Path]) -> str:
    place = list(paths).index(path)
    before, after = paths[place - 1] if place else None, paths[place + 1] if place + 1 < len(paths) else None
    links = [f'<a href="{before.stem}.html">← {escape(_title(before))}</a>'] if before else []
    links.append('<a href="index.html">The course</a>')
    links += [f'<a href="{after.stem}.html">{escape(_title(after))} →</a>'] if after else []
    return "".join(links)


def _title(path: Path) -> str:
    return re.sub(r"^#\s*", "", _first_cell(path).split("\n")[0])


def _first_cell(path: Path) -> str:
    return str(nbformat.read(path, as_version=4).cells[0].source)


def _index_row(path: Path) -> str:
    first = _first_cell(path)
    question = re.search(r"\*\*Question\.\*\*\s*(.*?)\n\n", first, re.S)
    stated = re.search(r"About (\d+) (minutes?)", first)
    assert question and stated, f"{path} states no question or no minutes"
    minutes = f"{stated[1]}&nbsp;{stated[2]}"
    asked = str(_markdown(question[1])).strip().removeprefix("<p>").removesuffix("</p>")
    link = f'<a href="{path.stem}.html">{escape(_title(path))}</a>'
    return f"<tr><td>{link}</td><td>{asked}</td><td>{minutes}</td></tr>"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("docs/make_course.py", description="Run the notebooks and write them as pages.")
    parser.add_argument("numbers", nargs="*", help="only these notebooks, such as 03 05")
    parser.add_argument("--output", type=Path, default=COURSE)
    parser.add_argument("--jobs", type=int, default=2, help="notebooks that run at the same time")
    options = parser.parse_args(arguments)
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    chosen = [path for path in paths if not options.numbers or path.stem[:2] in options.numbers]
    options.output.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        for path, notebook in zip(chosen, pool.map(execute, chosen), strict=True):
            page = options.output / f"{path.stem}.html"
            page.write_text(page_of(notebook, path, paths), encoding="utf-8")
            print(f"{page.name}: {page.stat().st_size / 1000:.0f} kB")
    (options.output / "index.html").write_text(index_of(paths), encoding="utf-8")
    for old in {*options.output.glob("*.html")} - {options.output / f"{path.stem}.html" for path in paths}:
        if old.name != "index.html":
            old.unlink()


if __name__ == "__main__":
    main()
