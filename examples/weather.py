"""Weather: tools with typed parameters and structured results.

The signature becomes the input schema, the return type the output schema, the docstring the description.

    toolpost run examples/weather.py                         serves over stdio
    toolpost run examples/weather.py --http 127.0.0.1:8000   serves over HTTP
    toolpost call examples/weather.py forecast --city Oslo --days 3
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from toolpost import Context, Server, ToolError

server = Server(
    "weather", version="1.0", instructions="Call `cities` first: only a few cities have a forecast."
)

Unit = Literal["celsius", "fahrenheit"]
Days = Annotated[int, Meta(ge=1, le=5)]

WEATHER = {  # sky and highest temperature for each of the next five days
    "Bergen": [("rain", 7), ("rain", 8), ("rain", 6), ("clouds", 9), ("rain", 8)],
    "Cairo": [("sun", 31), ("sun", 33), ("sun", 34), ("clouds", 30), ("sun", 32)],
    "Oslo": [("snow", -2), ("clouds", 1), ("snow", -4), ("snow", -1), ("sun", 3)],
    "Quito": [("clouds", 18), ("rain", 17), ("sun", 21), ("rain", 16), ("clouds", 19)],
}


@dataclass
class Day:
    day: int
    sky: str
    high: float


@dataclass
class Forecast:
    city: str
    unit: Unit
    days: list[Day]


@server.tool
def cities() -> list[str]:
    """List the cities that have a forecast."""
    return list(WEATHER)


@server.tool
def forecast(city: str, days: Days = 3, unit: Unit = "celsius") -> Forecast:
    """Return the forecast for the next days.

    Args:
        city: a city from `cities`.
        days: the number of days, including today.
        unit: the temperature unit.
    """
    if city not in WEATHER:
        raise ToolError(f"No forecast for {city}. Choose one of {', '.join(WEATHER)}.")
    daily = enumerate(WEATHER[city][:days], start=1)
    return Forecast(city, unit, [Day(number, sky, in_unit(high, unit)) for number, (sky, high) in daily])


@server.tool
async def warmest(ctx: Context, day: Days = 1) -> str:
    """Return the warmest city on a day.

    Args:
        day: the number of the day, from 1 (today) to 5.
    """
    highs = {city: days[day - 1][1] for city, days in WEATHER.items()}
    await ctx.info({"highs": highs})  # a log message for the client
    return max(highs, key=lambda city: highs[city])


def in_unit(celsius: float, unit: Unit) -> float:
    return celsius if unit == "celsius" else round(celsius * 1.8 + 32, 1)


if __name__ == "__main__":
    server.run()  # so `python examples/weather.py` works like `toolpost run examples/weather.py`
