from toolpost import Server

server = Server("weather")


@server.tool
def forecast(city: str) -> str:
    """Tell the weather."""
    return f"Sunshine in {city}"


if __name__ == "__main__":
    server.run(http="127.0.0.1:8000")  # at http://127.0.0.1:8000/mcp, for clients of every revision
