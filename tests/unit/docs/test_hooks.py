import pytest
from mkdocs.exceptions import PluginError

from dev.docs import hooks


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://example.org/a.js"></script>',
        "<script defer src=//example.org/a.js></script>",
        '<link rel="stylesheet" href="https://example.org/a.css">',
        '<img alt="x" src="http://example.org/a.png">',
    ],
)
def test_what_a_browser_would_fetch_from_elsewhere_is_found(html: str) -> None:
    assert len(hooks.remote_addresses(f"<p>{html}</p>")) == 1


def test_links_and_local_files_are_no_fault() -> None:
    html = '<a href="https://example.org">x</a><script src="../assets/a.js"></script><img src="images/a.png">'
    assert hooks.remote_addresses(html) == []


def test_marker_without_a_part_ends_the_build() -> None:
    with pytest.raises(PluginError, match="nonsense"):
        hooks.on_page_markdown("<!-- generated: nonsense -->")


def test_generated_part_takes_the_place_of_its_marker() -> None:
    page = hooks.on_page_markdown("a\n\n<!-- generated: TrainSFTConfig -->\n\nb")
    assert page.startswith("a\n\n| name | type | default | meaning |\n")
    assert page.endswith("backend's choice. |\n\nb")
