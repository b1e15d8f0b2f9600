"""An invitation as people hand it on: read from a file, or from the words of a flag. No network."""

from pathlib import Path

from protocol.admission import MAX_TOKEN_TEXT, Token, is_token
from protocol.errors import RemoteFault, UserError


def read_invitation(told: str) -> Token:
    """Return the token that ``told`` is, or that the file of this name has.

    Raises:
        UserError: it is none, or there is no such file.
    """
    text, where = told.strip(), "--invitation"
    if not is_token(text):
        path = Path(told).expanduser()
        where = str(path)
        try:
            with path.open("rb") as file:
                text = file.read(MAX_TOKEN_TEXT + 64).decode("ascii").strip()
        except OSError as error:
            raise UserError(f"cannot read the invitation {path}: {error.strerror}; give its file, or its text") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} holds no invitation; give the file that manta-aggregator invite wrote, or its text") from error
    try:
        token = Token.from_text(text)
        token.invitation.open()
    except RemoteFault as error:
        raise UserError(f"{where} is no invitation ({error}); copy it whole, as it was sent to you") from error
    return token
