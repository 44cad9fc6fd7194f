"""Elicitation and sampling: a tool that asks the user twice, books a room in between, and asks the model
once.

The code is the same for clients of every revision.

    python examples/asking.py                    serves over stdio
    python examples/asking.py 127.0.0.1:8000     serves over HTTP
"""

import os
import sys
from pathlib import Path
from typing import TypeVar

from toolpost import Accepted, Context, KeyRing, Server, ToolError
from toolpost.errors import CapabilityNotDeclared

# A stateless client may send its answers to another process, which needs the same key.
KEY = os.environ.get("TRIPS_KEY")
LEDGER = Path(os.environ.get("TRIPS_LEDGER", "trips.txt"))

server = Server("trips", keys=KeyRing([KEY]) if KEY else None)

T = TypeVar("T", int, str)


def book(city: str, days: int) -> int:
    """Book a room. This must not happen twice."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{city} {days}\n")
        return ledger.tell()


async def ask_user(ctx: Context, question: str, kind: type[T]) -> T:
    """Ask the user. Clients before 2025-06-18 have no forms, so their model asks instead."""
    try:
        answer = await ctx.elicit(question, kind)
    except CapabilityNotDeclared:
        reply = await ctx.sample(f"Ask the user, and answer in one word: {question}")
        return kind(reply.text)
    if not isinstance(answer, Accepted):
        raise ToolError("No answer, no trip.")
    return answer.data


@server.tool
async def plan_trip(city: str, ctx: Context) -> str:
    """Plan a trip to a city together with the user."""
    days = await ask_user(ctx, f"How many days in {city}?", int)
    room = await ctx.step("book", book, city, days)  # runs once, even if this function is replayed
    taste = await ask_user(ctx, "What do you like: food, art or hills?", str)
    plan = await ctx.sample(f"Plan {days} days in {city} for a traveller who likes {taste}.")
    return f"Room {room}, {days} days of {taste}: {plan.text}"


if __name__ == "__main__":
    server.run(http=sys.argv[1] if len(sys.argv) > 1 else None)
