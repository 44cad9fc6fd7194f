"""Approval: a tool that asks a person before and after it pays, and pays once.

A client of the newest revision has no session. It is asked by a result, it calls again, and the function runs
again from the top: `ctx.step` remembers what must not happen twice. Older clients are asked while it waits.
The code is the same, and so is what is paid.

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
    """Move the money: what must not happen twice."""
    paid.append(f"{amount} to {to}")
    return next(numbers)


@server.tool
async def pay(to: str, amount: Annotated[int, Meta(ge=1)], ctx: Context) -> Payment:
    """Pay somebody, if a person approves it."""
    answer = await ctx.elicit(f"Pay {amount} to {to}?", Approval)
    if not isinstance(answer, Accepted) or not answer.data.approve:
        return Payment(done=False, remark="nobody approved it")
    receipt = await ctx.step("transfer", transfer, to, amount)  # once, however often this function runs
    account = await ctx.elicit(f"It is paid, receipt {receipt}. Which account?", Account)
    chosen = account.data if isinstance(account, Accepted) else None
    return Payment(True, receipt, chosen, answer.data.remark)


@server.resource("ledger://paid", mime_type="application/json")
def ledger() -> list[str]:
    """All that was paid."""
    return paid


if __name__ == "__main__":
    server.run()
