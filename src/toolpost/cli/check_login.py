"""What a server says about logging in: its challenge, its metadata, those of who issues its tokens.

Reads what is published, as a client would, and asks nobody for a token.
"""

from collections.abc import Mapping

from toolpost.auth.challenge import parse_challenges
from toolpost.auth.discovery import discover
from toolpost.auth.fetch import AuthHttpClient
from toolpost.auth.guard import UrlPolicy, redact_url
from toolpost.auth.metadata import AuthorizationServerMetadata
from toolpost.cli.checkup import DoctorReport
from toolpost.cli.exits import UNAUTHORIZED
from toolpost.errors import AuthError
from toolpost.transports.address import Http
from toolpost.transports.http_backend import Backend

__all__ = ["check_login"]


async def check_login(
    checkup: DoctorReport, place: Http, backend: Backend, received: Mapping[str, str]
) -> None:
    """Look at what a server that answers 401 wants, and whether somebody could get it.

    Raises:
        DoctorAborted: in any case: without a token there is nothing more to look at.
    """
    challenges = parse_challenges(received.get("www-authenticate", ""))
    given = "authorization" in (place.headers or {})
    where = next(
        (each.params["resource_metadata"] for each in challenges if "resource_metadata" in each.params), None
    )
    if not challenges:
        checkup.warn("challenge", "401 without a WWW-Authenticate header", "it has to say what it wants")
    else:
        scopes = " ".join(dict.fromkeys(scope for each in challenges for scope in each.scopes))
        wanted = f", for the scopes {scopes}" if scopes else ""
        checkup.ok("challenge", f"401: it wants a token ({challenges[0].scheme}){wanted}")
    try:
        found = await discover(AuthHttpClient(backend, UrlPolicy(place.url)), place.url, where)
    except AuthError as error:
        checkup.fail("metadata", error.message, error.hint or "")
    else:
        if found.published:
            checkup.ok("metadata", f"tokens are for {redact_url(found.resource.resource)}")
        else:
            checkup.warn(
                "metadata",
                "it publishes no protected-resource metadata (RFC 9728)",
                "clients guess that it is its own authorization server; looked at "
                + ", ".join(redact_url(url) for url in found.searched_urls),
            )
        _check_issuer(checkup, found.issuer)
    error = next((each.error for each in challenges if each.error), None)
    checkup.stop(
        "login",
        f"the token is not accepted{f': {error}' if error else ''}" if given else "no token was given",
        "get a new one"
        if given
        else "--header 'Authorization: Bearer …' sends one; then the rest is looked at",
        code=UNAUTHORIZED,
    )


def _check_issuer(checkup: DoctorReport, issuer: AuthorizationServerMetadata) -> None:
    """What a client needs of an authorization server."""
    name = redact_url(issuer.issuer)
    if issuer.legacy:
        checkup.warn("issuer", f"{name} publishes no metadata (RFC 8414)", "its endpoints are a guess")
        return
    lacking = [
        words
        for words, value in (
            ("authorization_endpoint", issuer.authorization_endpoint),
            ("token_endpoint", issuer.token_endpoint),
        )
        if not value
    ]
    if lacking:
        checkup.fail("issuer", f"{name} does not name its {' and '.join(lacking)}")
    elif "S256" not in (issuer.code_challenge_methods_supported or ()):
        checkup.fail(
            "issuer",
            f"{name} does not say that it knows PKCE with S256",
            "clients refuse to log in there: code_challenge_methods_supported has to list S256",
        )
    elif not issuer.client_id_metadata_document_supported and not issuer.registration_endpoint:
        checkup.warn(
            "issuer",
            f"{name} knows only clients that were registered by hand",
            "give each host a client id, or let it take metadata documents or registrations",
        )
    else:
        checkup.ok("issuer", f"{name}, with PKCE, and clients can make themselves known")
