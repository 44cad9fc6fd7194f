from toolpost import Server

server = Server("weather")


@server.tool
def forecast(city: str) -> str:
    """Return the weather forecast for a city."""
    return f"Sunshine in {city}"


if __name__ == "__main__":
    server.run(http="127.0.0.1:8000")  # clients connect to http://127.0.0.1:8000/mcp
