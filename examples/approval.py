"""Approval: a tool that asks the user before and after a payment, and pays exactly once.

A client of the newest revision has no session: the server returns the question, the client calls again with
the answer, and the function runs again from the top. `ctx.step` runs the payment only once. With older
clients, the function waits for each answer instead. The same code serves both.

    toolpost call examples/approval.py pay --to "Ink & Sons" --amount 120
"""

from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

from msgspec import Meta

from toolpost import Accepted, Context, Server

server = Server("approval", version="1.0")

Account = Literal["office", "travel", "food"]
numbers = count(1)
paid: list[str] = []


@dataclass
class Approval:
    approve: bool
    remark: str = ""


@dataclass
class Payment:
    done: bool
    receipt: int | None = None
    account: Account | None = None
    remark: str = ""


def transfer(to: str, amount: int) -> int:
    """Move the money. This must not happen twice."""
    paid.append(f"{amount} to {to}")
    return next(numbers)


@server.tool
async def pay(to: str, amount: Annotated[int, Meta(ge=1)], ctx: Context) -> Payment:
    """Pay an amount to a recipient, after the user has approved it."""
    answer = await ctx.elicit(f"Pay {amount} to {to}?", Approval)
    if not isinstance(answer, Accepted) or not answer.data.approve:
        return Payment(done=False, remark="not approved")
    receipt = await ctx.step("transfer", transfer, to, amount)  # runs once, even if this function is replayed
    account = await ctx.elicit(f"Paid, receipt {receipt}. Which account?", Account)
    chosen = account.data if isinstance(account, Accepted) else None
    return Payment(True, receipt, chosen, answer.data.remark)


@server.resource("ledger://paid", mime_type="application/json")
def ledger() -> list[str]:
    """All payments so far."""
    return paid


if __name__ == "__main__":
    server.run()
