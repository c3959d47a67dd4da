"""docs/course: a page for each notebook, made from it as it is now, that needs nothing but itself."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.notebooks.reading import NAMES, PATHS, ROOT, is_exercise, read, solution_in
from tests.notebooks.test_rules import ADDRESS

DOCS = ROOT / "docs"
MAX_BYTES = 400_000
OWN = ('xmlns="http://www.w3.org/2000/svg"', "http://127.0.0.1", "http://localhost")  # no one is asked


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    if not DOCS.is_dir():
        pytest.skip("the docs are not part of this installation")
    spec = importlib.util.spec_from_file_location("make_course", DOCS / "make_course.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=PATHS, ids=NAMES)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def strange(html: str) -> list[str]:
    """What would make a browser ask for something else than this page."""
    for own in OWN:
        html = html.replace(own, "")
    html = re.sub(r'src="data:image/png;base64,[A-Za-z0-9+/=]*"', "", html)
    return re.findall(rf"{ADDRESS}|<script|<link|<iframe|@import|url\(|\bsrc=|\bsrcset=|\bon[a-z]+=", html)


def test_the_page_is_in_step_with_its_notebook(maker: ModuleType, path: Path) -> None:
    page = maker.COURSE / f"{path.stem}.html"
    assert page.exists(), "run make course"
    said = re.search(r'<meta name="notebook" content="(\w+)"', page.read_text(encoding="utf-8"))
    assert said and said[1] == maker.digest(path), f"run make course COURSE={path.stem[:2]}"


def test_the_page_holds_what_the_notebook_holds(maker: ModuleType, path: Path) -> None:
    html, cells = (maker.COURSE / f"{path.stem}.html").read_text(encoding="utf-8"), read(path).cells
    assert len(html.encode()) < MAX_BYTES
    assert html.count('<div class="code exercise">') == sum(map(is_exercise, cells))
    assert html.count("<details><summary>Solution</summary>") == sum(solution_in(cell) is not None for cell in cells)
    assert "<details open" not in html
    assert html.count('<div class="out">') > 10
    assert "▶" in html or path.stem.startswith("00")  # the roadmap with this stage lit
    assert html.count("<svg") >= 1


def test_the_index_lists_every_page(maker: ModuleType) -> None:
    assert (maker.COURSE / "index.html").read_text(encoding="utf-8") == maker.index_of(PATHS), "run make course"
    assert {page.stem for page in maker.COURSE.glob("*.html")} == {*NAMES, "index"}


def test_no_page_needs_anything_but_itself(maker: ModuleType) -> None:
    for page in maker.COURSE.glob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert strange(html) == [], page.name
        assert not re.search(r"/(work|root|home|Users|mnt)/", html), f"{page.name} names a folder of one machine"
        for target in re.findall(r'href="([^"#]+)"', html):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "html", ["<script>1</script>", '<img src="a.png">', "//cdn.x.org/a", "<p onclick=1>", "url(a)"]
)
def test_what_is_strange(html: str) -> None:
    assert strange(html)


class TestRendering:
    @pytest.fixture
    def page(self, maker: ModuleType) -> Any:
        """The page of a notebook with these cells, under the name of the second one."""
        return lambda *cells: maker.page_of(new_notebook(cells=list(cells)), PATHS[1], PATHS)

    def test_prose_code_and_outputs(self, page: Any) -> None:
        outputs = [
            new_output("stream", text="\x1b[1mbold\x1b[0m & <b>"),
            new_output("display_data", data={"text/plain": "plain", "text/html": "<table></table>"}),
            new_output(
                "display_data", data={"application/vnd.jupyter.widget-view+json": {}, "text/html": "<i>still</i>"}
            ),
            new_output("display_data", data={"text/plain": "Figure", "image/png": "aGk=\n"}),
        ]
        html = page(new_markdown_cell("# 01 · T\n\n**q** `code`"), new_code_cell("x = '<1>'", outputs=outputs))
        assert "<strong>q</strong> <code>code</code>" in html
        assert "&lt;1&gt;" in html and "<1>" not in html
        assert "bold &amp; &lt;b&gt;" in html and "\x1b" not in html
        assert "<table></table>" in html and ">plain<" not in html
        assert "<i>still</i>" in html
        assert '<img alt="Figure" src="data:image/png;base64,aGk=">' in html
        assert strange(html) == []

    def test_links_lead_to_pages_and_to_neighbours(self, page: Any) -> None:
        html = page(new_markdown_cell("# 01 · T\n\n[back](00_run_one_step.ipynb), [more](../README.md)"))
        assert '<a href="00_run_one_step.html">back</a>' in html
        assert '<a href="../../README.md">more</a>' in html
        assert f'<a href="{PATHS[0].stem}.html">' in html and f'<a href="{PATHS[2].stem}.html">' in html

    def test_the_folder_of_the_checkout_is_left_out(self, page: Any) -> None:
        outputs = [new_output("stream", text=f"Error in {ROOT}/kitlib/keys.py")]
        html = page(new_markdown_cell("# 01 · T"), new_code_cell("1", outputs=outputs))
        assert "Error in kitlib/keys.py" in html and str(ROOT) not in html

    def test_a_solution_is_folded_and_coloured(self, page: Any) -> None:
        text = "<details><summary>Solution</summary>\n\n```python\nx = 1\n```\n\nWhy.\n\n</details>"
        html = page(new_markdown_cell("# 01 · T"), new_markdown_cell(text))
        folded = html[html.index("<details>") : html.index("</details>")]
        assert '<div class="code">' in folded and "<p>Why.</p>" in folded

    def test_a_cell_that_raises_makes_no_page(self, page: Any) -> None:
        failed = new_output("error", ename="ValueError", evalue="no", traceback=[])
        with pytest.raises(SystemExit, match="ValueError: no"):
            page(new_markdown_cell("# 01 · T"), new_code_cell("1", outputs=[failed]))
