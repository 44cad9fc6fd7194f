"""A tool that asks in the middle of its work: the user twice, the model once, with a booking between.

It reads the same for every client. python examples/asking.py serves on stdin and stdout, as hosts start it;
python examples/asking.py 127.0.0.1:8000 serves over HTTP.
"""

import os
import sys
from pathlib import Path
from typing import TypeVar

from toolpost import Accepted, Context, KeyRing, Server, ToolError
from toolpost.errors import CapabilityNotDeclared

# A stateless client may come back with its answers to any process that has the same key.
KEY = os.environ.get("TRIPS_KEY")
LEDGER = Path(os.environ.get("TRIPS_LEDGER", "trips.txt"))

server = Server("trips", keys=KeyRing([KEY]) if KEY else None)

T = TypeVar("T", int, str)


def book(city: str, days: int) -> int:
    """Book a room: what must not happen twice."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{city} {days}\n")
        return ledger.tell()


async def asked(ctx: Context, question: str, kind: type[T]) -> T:
    """What the user says. Clients before 2025-06-18 have no forms, so their model passes the question on."""
    try:
        answer = await ctx.elicit(question, kind)
    except CapabilityNotDeclared:
        said = await ctx.sample(f"Ask the user, and answer in one word: {question}")
        return kind(said.text)
    if not isinstance(answer, Accepted):
        raise ToolError("No answer, no trip.")
    return answer.data


@server.tool
async def plan_trip(city: str, ctx: Context) -> str:
    """Plan a trip to a city, together with whoever travels."""
    days = await asked(ctx, f"How many days in {city}?", int)
    room = await ctx.step("book", book, city, days)  # once, however often this function runs
    taste = await asked(ctx, "What do you like: food, art or hills?", str)
    plan = await ctx.sample(f"Plan {days} days in {city} for somebody who likes {taste}.")
    return f"Room {room}, {days} days of {taste}: {plan.text}"


if __name__ == "__main__":
    server.run(http=sys.argv[1] if len(sys.argv) > 1 else None)
