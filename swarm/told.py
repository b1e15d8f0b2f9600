"""A text that people hand on, as an invitation: given as itself, or as the name of a file that has it. No network."""

from pathlib import Path

from protocol.errors import UserError


def text_or_file(told: str, prefix: str, max_letters: int, *, what: str, source: str) -> tuple[str, str]:
    """Return the text, which may be too long or none at all, and how to call the place where it was.

    Args:
        told: what a person gave.
        prefix: with which such texts begin.
        max_letters: of one.
        what: it is.
        source: how one is got, for who gave another file.

    Raises:
        UserError: it is not such a text, and no file of that name can be read as text.
    """
    text = told.strip()
    if text.startswith(prefix):
        return text, "what was given"
    path = Path(told).expanduser()
    try:
        with path.open("rb") as file:
            return file.read(max_letters + 64).decode("ascii").strip(), str(path)
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror}; give its file, or its text") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} holds no {what}; give {source}, or its text") from error
