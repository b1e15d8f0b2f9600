"""What a volunteer was given to come into a run whose peers are invited: read from a file, or from the words of a flag. No network."""

from pathlib import Path

from protocol.admission import MAX_TOKEN_TEXT, Token, is_token
from protocol.errors import RemoteFault, UserError
from swarm.disk import load_identity


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


def check_invitation(told: str, identity: Path) -> None:
    """Refuse an invitation that is none, or is for another key than that of the file ``identity``, where there is one.

    Raises:
        UserError: so it is.
    """
    token = read_invitation(told)
    if not token.secret and identity.exists() and load_identity(identity).public_key != token.invitation.read().holder:
        raise UserError("--invitation: it is for another key than yours; ask for one for the key that manta-peer identity shows")
