"""A console for tests."""


class Lines(list[str]):
    """A ``Console`` that keeps the lines that were said."""

    def say(self, text: str) -> None:
        self.append(text)
