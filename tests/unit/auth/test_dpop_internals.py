"""DPoP on the server: each request needs a fresh proof of the key (RFC 9449)."""

from typing import Any

from dpop_holder import Holder, another_key
from hosted import modern, run
from protected_server import guarded
from toolpost.auth.server import dpop as proving


def test_only_proofs_of_good_tokens_are_remembered():
    """No other client can fill the store."""

    async def main() -> None:
        async with guarded() as (site, mint, server):
            holder = Holder(mint)
            headers, body = modern("tools/list")
            for bad in (holder.proof(ath="x"), holder.proof(url="http://a/"), another_key(holder)):
                await site.post({**headers, **holder.sent(bad)}, body)
            held: Any = server.store
            assert [key for key in held.records._values._items if key.startswith("proof/")] == []
            await site.post({**headers, **holder.sent()}, body)
            [key] = [key for key in held.records._values._items if key.startswith("proof/")]
            assert len(key) == len("proof/") + 64

    run(main)


def test_a_server_may_want_a_nonce(monkeypatch):
    async def main() -> None:
        async with guarded(nonce=True) as (site, mint, _):
            holder = Holder(mint)
            headers, body = modern("tools/list")
            first = await site.post({**headers, **holder.sent()}, body)
            assert first.status == 401
            assert first.headers["www-authenticate"].startswith('DPoP error="use_dpop_nonce"')
            nonce = first.headers["dpop-nonce"]
            proven = holder.sent(holder.proof(nonce=nonce))
            assert (await site.post({**headers, **proven}, body)).status == 200
            invented = holder.sent(holder.proof(nonce="abc"))
            assert (await site.post({**headers, **invented}, body)).status == 401
            monkeypatch.setattr(proving, "NONCE_LIFETIME", 0.0)
            old = (await site.post({**headers, **invented}, body)).headers["dpop-nonce"]
            late = holder.sent(holder.proof(nonce=old))
            assert (await site.post({**headers, **late}, body)).status == 401

    run(main)
