"""The metadata of a protected server: alone, mounted in a framework, or behind another public URL."""

from typing import Any

import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount

from expected_limits import WELL_KNOWN
from hosted import run, serving
from protected_server import RESOURCE, guarded, kitchen, listing
from toolpost import Auth


def auth(**more: Any) -> Auth:
    return Auth("https://login.example.com", verifier=lambda _: "ann", **more)


@pytest.mark.requirement("AUTH-3", "AUTH-5", "AUTH-63")
@pytest.mark.parametrize("target", [f"{WELL_KNOWN}/mcp", WELL_KNOWN, f"{WELL_KNOWN}/mcp/"])
def test_the_published_metadata_and_its_url(target):
    async def main() -> None:
        async with guarded(scopes=["read", "list"], name="The kitchen") as (site, _, _):
            answer = await site.ask("GET", target)
            assert answer.status == 200
            told = answer.json
            assert told.pop("dpop_signing_alg_values_supported")
            assert told == {
                "resource": RESOURCE,
                "authorization_servers": ["https://login.example.com"],
                "scopes_supported": ["list", "read"],
                "bearer_methods_supported": ["header"],
                "resource_name": "The kitchen",
            }
            assert (await site.ask("HEAD", target)).status == 200

    run(main)


@pytest.mark.requirement("AUTH-5")
def test_any_page_may_read_it_and_ask_before():
    async def main() -> None:
        async with guarded() as (site, _, _):
            page = {"Origin": "https://anywhere.example.com"}
            wants = {"Access-Control-Request-Headers": "mcp-protocol-version"}
            asked = await site.ask("OPTIONS", WELL_KNOWN, {**page, **wants})
            assert (asked.status, asked.headers["access-control-allow-headers"]) == (204, "*")
            answer = await site.ask("GET", WELL_KNOWN, page)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")

    run(main)


def test_a_server_that_insists_on_proofs_says_so():
    async def main() -> None:
        async with guarded(dpop=True) as (site, _, _):
            told = (await site.ask("GET", WELL_KNOWN)).json
            assert told["dpop_bound_access_tokens_required"] is True
            assert "none" not in told["dpop_signing_alg_values_supported"]
            answer = await site.post(*listing())
            assert answer.headers["www-authenticate"].startswith("DPoP ")

    run(main)


def test_a_server_without_auth_publishes_nothing():
    async def main() -> None:
        app = kitchen(None).asgi()
        async with serving(app) as site:
            assert (await site.ask("GET", WELL_KNOWN)).status == 404
        async with serving(
            Starlette(routes=[Mount(WELL_KNOWN, app.metadata)], lifespan=app.lifespan)
        ) as site:
            assert (await site.ask("GET", f"{WELL_KNOWN}/mcp")).status == 404

    run(main)


# --------------------------------------------------------------------- mounted


def in_starlette(app: Any) -> Any:
    routes = [Mount(WELL_KNOWN, app.metadata), Mount("/api", app)]
    return Starlette(routes=routes, lifespan=app.lifespan)


def in_fastapi(app: Any) -> Any:
    site = FastAPI(lifespan=app.lifespan)
    site.mount(WELL_KNOWN, app.metadata)
    site.mount("/api", app)
    return site


def in_litestar(app: Any) -> Any:
    def mounted(path: str) -> Any:
        return asgi(path, is_mount=True, copy_scope=True)

    handlers: Any = [mounted(WELL_KNOWN)(app.metadata), mounted("/api")(app)]
    return Litestar(handlers, lifespan=[app.lifespan], logging_config=None)


@pytest.mark.requirement("AUTH-3", "AUTH-5")
@pytest.mark.parametrize("frame", [in_starlette, in_fastapi, in_litestar])
@pytest.mark.parametrize("public_url", ["https://mcp.example.com/api/mcp", "https://mcp.example.com/api"])
def test_mounted_under_a_prefix(frame, public_url):
    async def main() -> None:
        app = kitchen(auth()).asgi(public_url=public_url)
        async with serving(frame(app)) as site:
            answer = await site.ask("GET", f"{WELL_KNOWN}/api/mcp")
            assert answer.json["resource"] == "https://mcp.example.com/api/mcp"
            assert (await site.ask("GET", f"{WELL_KNOWN}/other")).status == 404
            assert (await site.ask("POST", f"{WELL_KNOWN}/api/mcp")).status == 405
            headers, body = listing()
            refused = await site.post(headers, body, "/api/mcp")
            assert refused.status == 401
            where = f'resource_metadata="https://mcp.example.com{WELL_KNOWN}/api/mcp"'
            assert where in refused.headers["www-authenticate"]
            headers, body = listing("t")
            assert (await site.post(headers, body, "/api/mcp")).status == 200

    run(main)


def test_behind_a_proxy_that_changes_paths_the_whole_url_counts():
    async def main() -> None:
        app = kitchen(auth()).asgi(public_url="https://mcp.example.com/mcp")
        async with serving(in_starlette(app)) as site:
            headers, body = listing("t")
            assert (await site.post(headers, body, "/api/mcp")).status == 200

    run(main)


@pytest.mark.parametrize("frame", [in_starlette, in_litestar])
def test_a_mounted_server_needs_its_full_url(frame, caplog):
    """Tokens name it; a guess could accept tokens that are meant for other servers."""

    async def main() -> None:
        app = kitchen(auth()).asgi(public_url="https://mcp.example.com")
        async with serving(frame(app)) as site:
            headers, body = listing("t")
            assert (await site.post(headers, body, "/api/mcp")).status == 500
            assert "mounted at /api" in caplog.text

    run(main)


def test_mounted_at_its_own_path():
    async def main() -> None:
        app = kitchen(auth()).asgi(path="/", public_url="https://mcp.example.com/mcp", sse=None)
        site = Starlette(routes=[Mount(WELL_KNOWN, app.metadata), Mount("/mcp", app)], lifespan=app.lifespan)
        async with serving(site) as at:
            assert (await at.ask("GET", f"{WELL_KNOWN}/mcp")).json[
                "resource"
            ] == "https://mcp.example.com/mcp"
            headers, body = listing("t")
            assert (await at.post(headers, body, "/mcp/")).status == 200

    run(main)


@pytest.mark.parametrize(
    ("public_url", "path", "resource"),
    [
        ("https://mcp.example.com", "/mcp", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com/", "/mcp", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com:8443/mcp", "/mcp", "https://mcp.example.com:8443/mcp"),
        ("https://mcp.example.com/a", "/mcp", "https://mcp.example.com/a/mcp"),
        ("https://mcp.example.com/a", "/", "https://mcp.example.com/a"),
        ("https://mcp.example.com", "/", "https://mcp.example.com"),
    ],
)
def test_the_url_of_a_server_is_given_only_once(public_url, path, resource):
    async def main() -> None:
        async with serving(kitchen(auth()).asgi(path=path, public_url=public_url, sse=None)) as site:
            answer = await site.ask("GET", WELL_KNOWN, host="mcp.example.com")
            assert answer.json["resource"] == resource

    run(main)
