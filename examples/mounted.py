from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from toolpost import Server

server = Server("weather")


@server.tool
def forecast(city: str) -> str:
    """Return the weather forecast for a city."""
    return f"Sunshine in {city}"


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("The MCP server is at /api/mcp.")


mcp = server.asgi()
app = Starlette(routes=[Route("/", home), Mount("/api", mcp)], lifespan=mcp.lifespan)
