"""How programs log: lines for people, or JSON objects for machines, one a line, on standard error. Set up by the programs only.

A message is an event and then its fields, as in "round committed round=7 peers=5"; in JSON each field is a member of its own. No library is
imported here.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime

FORMATS = ("text", "json")
_FIELD = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*)=")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?")
_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}  # libraries rename them
_OWN = ("time", "level", "logger", "event")


def set_up_logging(form: str, *, verbose: bool) -> None:
    """Log from now on in one of ``FORMATS``: warnings, and with ``verbose`` what happens between the rounds."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time (UTC), level, logger, event, and the fields of its message."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        trace = self.formatException(record.exc_info) if record.exc_info else None
        return json_line(
            record.getMessage(), level=_LEVELS.get(record.levelno, "critical"), logger=record.name, at_s=record.created, trace=trace
        )


def json_line(message: str, *, level: str, logger: str, at_s: float, trace: str | None = None) -> str:
    """Return a message as one line of JSON; ``at_s`` is in seconds since 1970."""
    event, fields = _parts(message)
    time = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line: dict[str, object] = {"time": time, "level": level, "logger": logger, "event": event}
    line |= {name if name not in _OWN else f"{name}_": value for name, value in fields.items()}
    if trace is not None:
        line["traceback"] = trace
    return json.dumps(line, ensure_ascii=False)


def _parts(message: str) -> tuple[str, dict[str, object]]:
    """Return a message's event and its fields; what follows a field's sign up to the next field is its value."""
    found = list(_FIELD.finditer(message))
    if not found:
        return message.strip(), {}
    ends = [*(each.start() for each in found[1:]), len(message)]
    fields = {each[1]: _value(message[each.end() : end].strip()) for each, end in zip(found, ends, strict=True)}
    return message[: found[0].start()].strip(), fields


def _value(text: str) -> object:
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    return float(text) if number[2] else int(text)
