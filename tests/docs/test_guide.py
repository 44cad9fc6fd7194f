"""The code on the pages of the guide runs as it stands: block after block, in one namespace."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["docs/asking.md", "docs/auth.md", "docs/client.md", "docs/http.md", "docs/server.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_on_a_page_runs(page, monkeypatch):
    monkeypatch.chdir(ROOT)  # pages name the files in `examples/` as a reader in a checkout would
    text = (ROOT / page).read_text(encoding="utf-8")
    namespace = {"__name__": "page"}
    for block in BLOCK.finditer(text):
        above = text.count("\n", 0, block.start(1))
        code = compile("\n" * above + block[1], ROOT / page, "exec")  # a traceback names the line of the page
        exec(code, namespace)


@pytest.mark.parametrize("page", PAGES)
def test_all_code_on_a_page_is_found(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) == text.count("```python") > 0


@pytest.mark.parametrize("page", PAGES)
def test_the_contents_name_every_section(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", section.lower()).replace(" ", "-") for section in sections]
    head = text.partition("\n## ")[0]
    assert re.findall(r"\]\(#([^)]*)\)", head) == anchors


@pytest.mark.parametrize("index", ["README.md", "docs/README.md"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_linked(index, page):
    target = page if index == "README.md" else Path(page).name
    assert f"]({target})" in (ROOT / index).read_text(encoding="utf-8")
