"""FastAPI: a web application with an MCP server mounted in it.

    python examples/fastapi_app.py        the shop is at http://127.0.0.1:8000, its MCP server at /api/mcp
    toolpost call http://127.0.0.1:8000/api/mcp order --item tea

Both use the same data in memory. `lifespan=` starts and stops the MCP server together with the application.
"""

from dataclasses import dataclass

from fastapi import FastAPI, HTTPException

from toolpost import Server, ToolError

server = Server("shop", version="1.0")


@dataclass
class Item:
    name: str
    left: int


STOCK = {name: Item(name, left) for name, left in [("ink", 3), ("pen", 7), ("tea", 1)]}


@server.tool
def stock() -> list[Item]:
    """List the items in the shop."""
    return list(STOCK.values())


@server.tool
def order(item: str) -> Item:
    """Order one unit of an item."""
    found = STOCK.get(item)
    if found is None or not found.left:
        raise ToolError(f"There is no {item} left.")
    found.left -= 1
    return found


mcp = server.asgi()
app = FastAPI(title="Shop", lifespan=mcp.lifespan)
app.mount("/api", mcp)  # served at /api/mcp, and at /api/sse for HTTP+SSE clients


@app.get("/items/{name}")
async def item(name: str) -> Item:
    if name not in STOCK:
        raise HTTPException(404, f"There is no {name} here.")
    return STOCK[name]


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=8000)
