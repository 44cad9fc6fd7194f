from fastapi import FastAPI

from toolpost import Server

server = Server("weather")


@server.tool
def forecast(city: str) -> str:
    """Tell the weather."""
    return f"Sunshine in {city}"


mcp = server.asgi()
app = FastAPI(lifespan=mcp.lifespan)
app.mount("/api", mcp)


@app.get("/")
async def home() -> str:
    return "The weather is at /api/mcp."
