"""The documentation builds as a site: without warnings, external resources or missing pages."""

import inspect
import re
from pathlib import Path

import pytest

import reference
import toolpost
import website
from revision_dates import DATES
from toolpost.testing import REVISIONS

ROOT = Path(__file__).resolve().parents[3]


def test_the_site_builds_without_a_warning(tmp_path):
    website.build(tmp_path / "site")
    pages = {page.stem for page in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"} <= pages
    assert {f"example-{page.stem.replace('_', '-')}" for page in (ROOT / "examples").glob("*.py")} <= pages

    def shown(page: str) -> str:
        return (tmp_path / "site" / f"{page}.html").read_text(encoding="utf-8")

    assert 'id="toolpost.Server.tool"' in shown("reference-servers")
    assert "session_life" in shown("reference-servers")
    assert 'href="reference-clients.html#toolpost.Client"' in shown("reference")
    assert 'href="example-weather.html"' in shown("examples")
    assert "Unreleased" in shown("changelog")
    assert "Contents:" not in shown("tools")
    largest = max((tmp_path / "site").glob("*.html"), key=lambda page: page.stat().st_size)
    assert largest.stat().st_size < 400_000, f"{largest.name} is too large to read: split it"


def test_an_example_page_has_its_docstring_and_its_code(tmp_path):
    root = repository(tmp_path, "# Home\n\n[x](../examples/x_y.py)\n")
    code = "def f():\n    return 1\n"
    (root / "examples" / "x_y.py").write_text(
        f'"""X: shows it.\n\n    run it\n"""\n\n{code}', encoding="utf-8"
    )
    website.build(tmp_path / "site", root)
    page = (tmp_path / "site" / "example-x-y" / "index.html").read_text(encoding="utf-8")
    assert "X: shows it." in page
    assert "run it" in page
    assert "return" in page


@pytest.mark.parametrize(
    ("cls", "method", "keyword"),
    [
        ("Server", "", "| `page_size` | `int` = `1000` |"),
        ("Server", "run", "| `workers` | `int` = `1` |"),
        ("Server", "serve_http", "| `address` | `str` = `'127.0.0.1:8000'` |"),
        ("Server", "asgi", "| `path` | `str` = `'/mcp'` |"),
        ("Client", "", "| `timeout` | `float | None` = `60.0` |"),
    ],
)
def test_every_keyword_has_a_row(cls, method, keyword):
    table = reference.keyword_table(cls, method)
    assert keyword in table
    function = getattr(getattr(toolpost, cls), method or "__init__")
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert rows == list(inspect.signature(function).parameters)[1:]


GUIDES = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))


@pytest.mark.parametrize(
    "function",
    [toolpost.Server, toolpost.Server.run, toolpost.Server.serve_http, toolpost.Server.asgi, toolpost.Client],
)
def test_every_keyword_is_on_a_page(function):
    keywords = [name for name in inspect.signature(function).parameters if name != "self"]
    missing = [name for name in keywords if not re.search(rf"`[^`\n]*\b{name}\b|\b{name}=", GUIDES)]
    assert not missing, f"{function.__qualname__}: these keywords are on no page: {', '.join(missing)}"


def repository(folder: Path, page: str) -> Path:
    """Create a small repository with one page."""
    (folder / "docs").mkdir()
    (folder / "src").mkdir()
    (folder / "docs" / "README.md").write_text(page, encoding="utf-8")
    for name in website.BESIDE:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("# Beside\n", encoding="utf-8")
    (folder / "zensical.toml").write_text('[project]\nsite_name = "small"\ntheme = { font = false }\n')
    return folder


def test_a_broken_link_fails_the_build_and_is_named(tmp_path):
    root = repository(tmp_path, "# Home\n\n[away](nowhere.md)\n")
    with pytest.raises(RuntimeError, match=r"README\.md:3:8"):
        website.build(tmp_path / "site", root)
    assert not (tmp_path / "site").exists()


def test_an_external_resource_fails_the_build_and_is_named(tmp_path):
    root = repository(tmp_path, '# Home\n\n<img src="https://example.com/spy.png">\n')
    with pytest.raises(RuntimeError, match=r"other hosts: https://example\.com/spy\.png"):
        website.build(tmp_path / "site", root)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[x](tools.md#results)", "[x](tools.md#results)"),
        ("[x](#here)", "[x](#here)"),
        ("[x](https://example.com)", "[x](https://example.com)"),
        ("[a `b`](../CONTRIBUTING.md#tests)", "[a `b`](contributing.md#tests)"),
        ("[`x.py`](../examples/x.py)", "`x.py`"),
        ("`[x](../examples/x.py)`", "`[x](../examples/x.py)`"),
        (r"| `int \| None` |", "| `int | None` |"),
        ("Contents: [x](#x) ·\n[y](#y)\n\nMore", "\n\n\nMore"),
    ],
)
def test_links_are_rewritten_for_the_site(written, shown, tmp_path):
    root = repository(tmp_path, written)
    assert website.staged(root / "docs" / "README.md", root) == shown


def test_the_table_of_revisions_equals_the_records():
    text = (ROOT / "docs" / "revisions.md").read_text(encoding="utf-8")
    cells = r"^\| (.*?) \|" + r" (.*?) \|" * len(DATES) + "$"
    rows = {row[0]: row[1:] for row in re.findall(cells, text, re.MULTILINE)}
    records = [REVISIONS[date] for date in DATES]

    def told(row: str) -> list[bool]:
        return [cell == "yes" for cell in rows[row]]

    assert list(rows["era"]) == [record.era for record in records]
    assert told("batches") == [record.batches for record in records]
    assert told("structured results, resource links") == [record.structured is not None for record in records]
    assert told("annotations of tools, audio") == ["audio" in record.content for record in records]
    assert told("asking by URL, sampling with tools, icons") == [record.rich_forms for record in records]
