"""Tools that ask the client in the middle of a call, in every era."""

import pytest

from features import needs
from toolpost import ToolError
from toolpost.client import callbacks


@needs("elicitation")
@pytest.mark.requirement("ELIC-43")
@pytest.mark.parametrize("content", [{}, {"value": "x"}, {"value": 1.5}, {"other": 1}])
async def test_an_answer_that_does_not_fit_is_reported(link, content, monkeypatch):
    monkeypatch.setattr(callbacks, "find_form_error", lambda *_: None)  # a client that does not look itself
    client = await link("asking")
    link.desk.elicited = content
    with pytest.raises(ToolError, match="is not valid"):
        await client.call_tool("how_many")
