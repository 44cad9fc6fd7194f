"""A scripted server of the stateless era, which records its requests."""

import asyncio
from typing import Any

from raw_server import Asked
from toolpost.protocol import jsonrpc
from toolpost.types import CallToolResult, InputRequest, InputRequiredResult, Raw, Result, TextContent

FORM = Raw(b'{"message":"?","requestedSchema":{"type":"object","properties":{"n":{"type":"integer"}}}}')
STATE = '{"a": 1}  \t✓ "quoted" \\u0041 \x7f'


def wants(*keys: str, state: str | None = None) -> InputRequiredResult:
    asks = {key: InputRequest("elicitation/create", FORM) for key in keys}
    return InputRequiredResult(input_requests=asks or None, request_state=state)


DONE = CallToolResult(content=[TextContent("done")])


class Script:
    """Returns scripted results in turn, and records the requests."""

    def __init__(self, *results: Result, takes: float = 0.0) -> None:
        self.results = list(results)
        self.seen: list[Asked] = []
        self.takes = takes

    async def __call__(self, asked: Asked) -> Result:
        self.seen.append(asked)
        await asked.progress(len(self.seen))
        if self.takes:
            await asyncio.sleep(self.takes)
        return self.results.pop(0)

    def params(self, number: int) -> Any:
        return jsonrpc.JSONReader(dict[str, Any])(self.seen[number].incoming.raw)
