"""The keys of an issuer: found by its metadata, fetched once for all requests, and again on rotation."""

import asyncio
import base64
import logging
from contextlib import asynccontextmanager
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from hosted import run, serving
from protected_server import RESOURCE, kitchen, listing
from toolpost import Auth, Jwt
from toolpost.auth import fetch as issuing
from toolpost.auth.jose import parse_jws
from toolpost.auth.server import jwt as keeping
from toolpost.auth.server.jwt import KeySource, read_keys
from toolpost.errors import MCPError, RequestFailed, TokenRejected
from toolpost.testing import AuthorizationServer, TokenIssuer


@asynccontextmanager
async def both(path: str = "", **jwt: Any):
    """A server and its issuer, each on a port of its own."""
    async with AuthorizationServer.serve(path) as issuer:
        auth = Auth(issuer.issuer, resource=RESOURCE, verifier=Jwt(issuer.issuer, **jwt) if jwt else None)
        async with serving(kitchen(auth).asgi()) as site:
            yield site, issuer


def test_invented_keys_cause_few_requests_and_block_no_client(monkeypatch):
    async def main() -> None:
        async with both() as (site, issuer):
            good = issuer.token(RESOURCE)

            async def invented(kid: str) -> int:
                token = TokenIssuer(issuer.issuer).token(RESOURCE, headers={"kid": kid})
                answer = await site.post(*listing(token))
                assert (answer.status == 503) == (answer.headers.get("retry-after") == "5")
                return answer.status

            # Invalid tokens are rejected as long as they can be checked; after that they cannot be judged.
            assert [await invented(f"k{n}") for n in range(8)] == [401] * 5 + [503] * 3
            assert issuer.request_counts["jwks"] == 1 + keeping.MAX_EARLY_FETCHES
            assert (await site.post(*listing(good))).status == 200
            issuer.rotate()
            new = issuer.token(RESOURCE)
            assert (await site.post(*listing(new))).status == 503
            # What cannot be good in any case needs no key to be refused.
            assert (await site.post(*listing(issuer.token(RESOURCE, lifetime=-60)))).status == 401
            assert (await site.post(*listing(issuer.token("https://other")))).status == 401
            clock = keeping.monotonic
            monkeypatch.setattr(keeping, "monotonic", lambda: clock() + keeping.EARLY_FETCH_INTERVAL)
            assert (await site.post(*listing(new))).status == 200
            assert issuer.request_counts["jwks"] == 2 + keeping.MAX_EARLY_FETCHES

    run(main)


class Nameless(AuthorizationServer):
    """An issuer whose keys have no names, or always the same one."""

    kid: str | None = None

    @property
    def jwks(self) -> dict[str, Any]:
        keys = [dict(each) for each in super().jwks["keys"]]
        for key in keys:
            key.pop("kid")
            key.update({} if self.kid is None else {"kid": self.kid})
        return {"keys": keys}


@pytest.mark.parametrize("kid", [None, "main"])
def test_keys_may_rotate_under_the_same_name_or_none(kid, monkeypatch):
    async def main() -> None:
        issuer = Nameless(ISSUER)
        issuer.kid = kid
        verifier = Jwt(ISSUER, http=issuer)

        async def good(signer: TokenIssuer = issuer) -> bool:
            try:
                return bool(await verifier.verify(signer.token(RESOURCE, headers={"kid": kid}), RESOURCE))
            except TokenRejected:
                return False

        assert await good()
        issuer.rotate(forget=True)
        assert [await good() for _ in range(3)] == [True] * 3
        assert issuer.request_counts["jwks"] == 2
        # Anyone can send unsigned tokens: they cause few requests, and are rejected in any case.
        forger = TokenIssuer(ISSUER)
        assert [await good(forger) for _ in range(8)] == [False] * 8
        assert issuer.request_counts["jwks"] == 1 + keeping.MAX_EARLY_FETCHES
        assert await good()
        # What is known is too old to say so, and nothing newer can be had.
        clock, later = keeping.monotonic, keeping.EARLY_FETCH_INTERVAL - 1
        monkeypatch.setattr(keeping, "monotonic", lambda: clock() + later)
        verifier._key_source._fetched_at -= 1
        with pytest.raises(RequestFailed, match="cannot be fetched again yet"):
            await good(forger)

    run(main)


def hanging(issuer: Any) -> tuple[Any, asyncio.Event, asyncio.Event]:
    """An issuer that answers only while an event is set, and an event that is set by a request."""
    works, asked = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await works.wait()
        await issuer(scope, receive, send)

    return app, works, asked


def test_an_issuer_that_hangs_holds_up_only_those_whose_keys_are_not_there(monkeypatch):
    monkeypatch.setattr(keeping, "REFRESH_TIMEOUT", 0.01)

    async def main() -> None:
        issuer = AuthorizationServer(ISSUER)
        app, works, asked = hanging(issuer)
        verifier = Jwt(ISSUER, http=app)
        works.set()
        assert await verifier.verify(issuer.token(RESOURCE), RESOURCE)
        works.clear()
        asked.clear()
        clock = keeping.monotonic
        monkeypatch.setattr(keeping, "monotonic", lambda: clock() + keeping.KEYS_LIFETIME)
        for _ in range(3):  # the keys are old, and good enough while new ones are asked for
            assert await verifier.verify(issuer.token(RESOURCE), RESOURCE)
        assert asked.is_set()
        issuer.rotate()
        monkeypatch.setattr(keeping, "FETCH_TIMEOUT", 0.01)
        with pytest.raises(RequestFailed):
            await verifier.verify(issuer.token(RESOURCE), RESOURCE)
        # The request is still in flight: it was sent once, and not abandoned.
        fetch = verifier._key_source._fetch_task
        assert fetch is not None
        assert not fetch.done()
        works.set()
        assert await fetch
        assert issuer.request_counts == {"metadata": 2, "jwks": 2}
        assert await verifier.verify(issuer.token(RESOURCE), RESOURCE)

    run(main)


ISSUER = "https://login.example.com"


def test_an_issuer_that_takes_its_time(monkeypatch):
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        monkeypatch.setattr(issuing, "ISSUER_TIMEOUT", 0.01)
        with pytest.raises(RequestFailed, match="did not respond within"):
            await issuing.fetch_json(slow, ISSUER)

    run(main)


def test_a_waiter_may_leave_and_others_get_the_keys():
    begun, go, loads = asyncio.Event(), asyncio.Event(), []
    issuer = TokenIssuer(ISSUER)
    token = parse_jws(issuer.token(RESOURCE))

    async def load() -> Any:
        loads.append(1)
        begun.set()
        await go.wait()
        return read_keys(issuer.jwks)

    async def main() -> None:
        source = KeySource(load)
        first = asyncio.create_task(source.verify_signature(token))
        await begun.wait()
        second = asyncio.create_task(source.verify_signature(token))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        go.set()
        assert await second
        assert len(loads) == 1

    run(main)


def test_a_fault_of_ours_while_keys_are_fetched_is_logged_and_goes_on(caplog):
    async def load() -> Any:
        raise KeyError("with the token in it")

    async def main() -> None:
        with pytest.raises(RequestFailed):
            await KeySource(load).verify_signature(parse_jws(TokenIssuer(ISSUER).token(RESOURCE)))
        assert "authorization server: KeyError" in caplog.text
        assert "with the token" not in caplog.text

    run(main)


def test_keys_stay_good_while_their_issuer_is_away_but_not_for_ever(monkeypatch):
    failing, issuer = False, TokenIssuer(ISSUER)
    token = parse_jws(issuer.token(RESOURCE))

    async def load() -> Any:
        if failing:
            raise MCPError("away")
        return read_keys(issuer.jwks)

    async def main() -> None:
        nonlocal failing
        source = KeySource(load)
        assert await source.verify_signature(token)
        failing, clock = True, keeping.monotonic
        monkeypatch.setattr(keeping, "monotonic", lambda: clock() + 2 * 3600)
        assert await source.verify_signature(token)
        monkeypatch.setattr(keeping, "monotonic", lambda: clock() + 26 * 3600)
        with pytest.raises(RequestFailed):
            await source.verify_signature(token)

    run(main)


# --------------------------------------------------------------------- which keys


def test_every_algorithm_with_its_own_kind_of_key_and_no_other():
    material = {
        "RSA": RSAKey.generate_key(2048),
        "EC": ECKey.generate_key("P-256"),
        "OKP": OKPKey.generate_key("Ed25519"),
        "oct": OctKey.generate_key(256),
    }
    keys = {kind: read_keys(key)[0] for kind, key in material.items()}
    for algorithm, (kind, curve) in keeping.ALGORITHMS.items():
        fitting = {name for name, key in keys.items() if key.can_verify(algorithm, None)}
        assert fitting == ({kind} if curve in {"", keys[kind].curve} else set())
    assert "none" not in keeping.ALGORITHMS
    assert set(keeping.ALGORITHMS) <= set(JWSRegistry.algorithms)


@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "RS256", "PS256"])
@pytest.mark.parametrize("form", ["set", "one", "list", "pem", "pem bytes", "objects"])
def test_keys_in_all_their_forms(algorithm, form):
    mint = TokenIssuer(ISSUER, algorithm=algorithm)
    [key] = mint._keys
    pem = key.as_pem(private=False)
    forms: dict[str, Any] = {
        "set": mint.jwks,
        "one": mint.jwks["keys"][0],
        "list": mint.jwks["keys"],
        "pem": pem.decode(),
        "pem bytes": [pem],
        "objects": [key],
    }

    async def main() -> None:
        verifier = Jwt(ISSUER, keys=forms[form])
        principal = await verifier.verify(mint.token(RESOURCE, subject="ann"), RESOURCE)
        assert (principal.subject, principal.issuer) == ("ann", ISSUER)
        with pytest.raises(TokenRejected):
            await verifier.verify(TokenIssuer(ISSUER, algorithm=algorithm).token(RESOURCE), RESOURCE)

    run(main)


def test_secrets_are_good_only_if_they_are_asked_for():
    secret = OctKey.generate_key(256)
    mint = TokenIssuer(ISSUER)
    mint.algorithm, mint._keys = "HS256", [secret]
    token = mint.token(RESOURCE, headers={"kid": None})
    with pytest.raises(ValueError, match="no key for any of algorithms="):
        Jwt(ISSUER, keys=secret)

    async def main() -> None:
        known = [secret, ECKey.generate_key("P-256")]
        with pytest.raises(TokenRejected, match="not allowed"):
            await Jwt(ISSUER, keys=known).verify(token, RESOURCE)
        found = await Jwt(ISSUER, keys=secret, algorithms="HS256").verify(token, RESOURCE)
        assert found.subject == "alice"

    run(main)


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {**TokenIssuer(ISSUER).jwks["keys"][0], "use": "enc"},
        {**TokenIssuer(ISSUER).jwks["keys"][0], "key_ops": ["sign"]},
        {"kty": "?"},
        {},
        5,
        "no key",
    ],
)
def test_keys_that_are_of_no_use(key, caplog):
    caplog.set_level(logging.DEBUG)
    good = TokenIssuer(ISSUER).jwks["keys"][0]
    assert [each.kid for each in read_keys([key, good])] == [good["kid"]]
    with pytest.raises(ValueError, match="no key can verify"):
        read_keys([key])
    with pytest.raises(ValueError, match="no key can verify"):
        read_keys({"keys": key})


@pytest.mark.parametrize(
    "text", ["", "a", "a.b", "a.b.c.d", "e30.e30.é", "e30.e30.a", "bm8.e30.", "W10.e30."]
)
def test_an_invalid_compact_jws(text):
    with pytest.raises(TokenRejected):
        parse_jws(text)


@pytest.mark.parametrize(
    "header", [b'{"alg":"RS256","x":NaN}', b'\xef\xbb\xbf{"alg":"RS256"}', '{"alg":"RS256"}'.encode("utf-16")]
)
def test_the_header_of_a_token_is_strict_json(header):
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (header, b"{}", b"s")]
    with pytest.raises(TokenRejected):
        parse_jws(".".join(parts))
