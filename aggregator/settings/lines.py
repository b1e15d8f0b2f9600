"""Where in a run file something stands, so that a mistake can be shown."""

import re
from collections.abc import Sequence

_SECTION = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")


def line_of(text: str, where: Sequence[int | str]) -> int | None:
    """Return the line of a section's key, or of the section; None where it is not found, in a file that is written in another way."""
    if not where:
        return None
    section, at_section = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if found := _SECTION.match(line):
            section = found[1]
            if section == where[0]:
                at_section = number
        elif (found := _KEY.match(line)) and ((section, found[1]) == tuple(where[:2]) or (section, found[1]) == ("", where[0])):
            return number
    return at_section
