"""Lists: pages that end, pages that do not, and items that cannot be decoded."""

import pytest

from toolpost.client.listing import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from toolpost.types.initialize import CacheableResult


@pytest.mark.parametrize("listing", [TOOLS, RESOURCES, TEMPLATES, PROMPTS])
def test_the_rows_are_those_of_the_protocol_but_for_the_result_and_the_need(listing):
    assert listing.row.needs is None  # a list that was not declared is requested all the same
    assert listing.needs in {"tools", "resources", "prompts"}
    assert listing.row.result is not None
    assert issubclass(listing.row.result, CacheableResult)
