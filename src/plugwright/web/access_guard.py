"""Controls access to the page and its buttons.

Every user of the machine, and every page open in a browser, can connect to a loopback port. So the page is only for
those who know its address: it contains a token, which becomes a cookie. A change needs a second token, which only our
pages contain, and the Origin of such a page. Host must be a name of loopback, which excludes names of other sites that
resolve to this address.
"""

import hmac
import secrets
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

__all__ = ["SECURITY_HEADERS", "AccessGuard"]

_HOSTS = ("127.0.0.1", "localhost")
_FOREIGN = ("cross-site", "same-site")  # of Sec-Fetch-Site
_POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
    "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
))  # fmt: skip
SECURITY_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send no Origin with a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CLOSED = "This page is open to those who have its address: use the one that plugwright printed, with its token.\n"


class AccessGuard(msgspec.Struct, frozen=True):
    """`visit` is a part of the printed address, `change` of forms on the page."""

    visit: str
    change: str

    @classmethod
    def new(cls) -> "AccessGuard":
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(24))

    def refusal(self, request: Request) -> Response | None:
        """The response to a forbidden request; None if it is allowed."""
        host = request.headers.get("host", "")
        if _name_of(host) not in _HOSTS:
            return PlainTextResponse("Host must be 127.0.0.1 or localhost\n", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("the method must be GET or POST\n", 405)
        if given := request.query_params.get("token", ""):
            return self._welcome(request, given)
        if not _is_same(request.cookies.get(_cookie(request), ""), self.visit):
            return PlainTextResponse(_CLOSED, 403)
        if request.method == "POST" and request.headers.get("origin") != f"http://{host}":
            return PlainTextResponse("changes are accepted from the page itself only\n", 403)
        if request.method == "POST" and request.headers.get("sec-fetch-site", "") in _FOREIGN:
            return PlainTextResponse("changes are accepted from the page itself only\n", 403)
        return None

    def may_change(self, token: str) -> bool:
        return _is_same(token, self.change)

    def _welcome(self, request: Request, given: str) -> Response:
        if request.method == "POST" or not _is_same(given, self.visit):
            return PlainTextResponse(_CLOSED, 403)
        others = request.url.remove_query_params("token")
        target = others.path + (f"?{others.query}" if others.query else "")
        answer = RedirectResponse("/" + target.lstrip("/"), 303)
        answer.set_cookie(_cookie(request), self.visit, httponly=True, samesite="strict")
        return answer


def _cookie(request: Request) -> str:
    """The cookie's name. Browsers send a cookie to every port of a host, so each page has its own name."""
    server = request.scope.get("server") or ("", 0)
    return f"plugwright-{server[1]}"


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
