"""What a request asks for: its parameters, each known, given once and within its bounds. Pure."""

import re
from collections.abc import Collection
from urllib.parse import unquote_plus

MOST = 2**53 - 1  # that a number in a path or query may be: what JSON's readers take exactly
_NUMBER = re.compile(r"[0-9]{1,18}")
_MAX_TEXT = 128


class NotAnswered(Exception):
    """A request that gets no answer but a reason."""

    def __init__(self, status: int, reason: str, **more: object) -> None:
        """Give status and reason; ``more`` goes beside them into the answer."""
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.more = more


class RequestParameters:
    """The parameters of one request."""

    def __init__(self, query: str, known: Collection[str]) -> None:
        """Read a query string.

        Raises:
            NotAnswered: a parameter that is unknown, or given twice, or not text.
        """
        self._given: dict[str, str] = {}
        for part in query.split("&") if query else ():
            name, _, value = part.partition("=")
            if name not in known:
                shown = f"; it knows {', '.join(sorted(known))}" if known else ""
                raise NotAnswered(400, f"this route does not know the parameter {name[:40]!r}{shown}")
            if name in self._given:
                raise NotAnswered(400, f"the parameter {name} is given twice")
            try:
                self._given[name] = unquote_plus(value, errors="strict")
            except UnicodeDecodeError as error:
                raise NotAnswered(400, f"the parameter {name} is not UTF-8") from error

    def number(self, name: str, least: int, most: int, default: int) -> int:
        """Return a parameter that is a number from ``least`` to ``most``; the default where it is missing or empty.

        Raises:
            NotAnswered: it is something else.
        """
        text = self._given.get(name, "")
        return default if not text else number_of(text, f"the parameter {name}", least, most)

    def optional(self, name: str, least: int, most: int) -> int | None:
        """Return a parameter as ``number`` does; None where it is missing or empty."""
        return self.number(name, least, most, 0) if self._given.get(name) else None

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """Return a parameter that is one of ``known``; the default where it is missing or empty.

        Raises:
            NotAnswered: it is something else.
        """
        text = self._given.get(name) or default
        if text and text not in known:
            raise NotAnswered(400, f"the parameter {name} is one of {', '.join(known)}, not {text[:40]!r}")
        return text

    def text(self, name: str) -> str:
        """Return a parameter that is a short text; empty where it is missing.

        Raises:
            NotAnswered: it is too long.
        """
        text = self._given.get(name, "")
        if len(text) > _MAX_TEXT:
            raise NotAnswered(400, f"the parameter {name} has at most {_MAX_TEXT} letters")
        return text


def number_of(text: str, what: str, least: int, most: int) -> int:
    """Return the number that a text is, from ``least`` to ``most``.

    Raises:
        NotAnswered: it is something else.
    """
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise NotAnswered(400, f"{what} is a number from {least} to {most}, not {text[:40]!r}")
    return int(text)


def number_in_path(text: str, what: str) -> int:
    """Return the number that a part of a path is.

    Raises:
        NotAnswered: it is something else, so there is nothing of that path.
    """
    try:
        return number_of(text, what, 0, MOST)
    except NotAnswered as error:
        raise NotAnswered(404, error.reason) from error
