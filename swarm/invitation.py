"""An invitation as people hand it on: read from a file, or from the words of a flag. No network."""

from protocol.admission import MAX_TOKEN_LETTERS, TOKEN, Token
from protocol.errors import RemoteFault, UserError
from swarm.told import text_or_file


def read_invitation(told: str) -> Token:
    """Return the token that ``told`` is, or that the file of this name has.

    Raises:
        UserError: it is none, or there is no such file.
    """
    source = "the file that manta-aggregator invite wrote"
    text, where = text_or_file(told, TOKEN, MAX_TOKEN_LETTERS, what="invitation", source=source)
    try:
        token = Token.from_text(text)
        token.invitation.open()
    except RemoteFault as error:
        raise UserError(f"{where} is no invitation ({error}); copy it whole, as it was sent to you") from error
    return token
