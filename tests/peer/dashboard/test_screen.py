"""What is said where the dashboard cannot be shown."""

import pytest

from peer.dashboard import screen
from protocol.errors import UserError


@pytest.mark.parametrize(
    ("has_terminal", "has_textual", "said", "unsaid"),
    [(False, True, "needs a terminal", "Textual"), (True, False, "needs Textual", "a terminal")],
)
def test_only_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, has_terminal: bool, has_textual: bool, said: str, unsaid: str
) -> None:
    monkeypatch.setattr(screen, "_has_terminal", lambda: has_terminal)
    monkeypatch.setattr(screen, "_has_textual", lambda: has_textual)
    with pytest.raises(UserError, match=said) as refused:
        screen.check_can_be_lent()
    assert unsaid not in str(refused.value)
    assert not screen.can_be_lent()
