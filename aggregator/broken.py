"""Whether an operator's program cannot go on any more."""

import asyncio


class Broken:
    """Set once by whatever fails for good: a disk, or a part of the program."""

    def __init__(self) -> None:
        self.told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def __bool__(self) -> bool:
        return self.told.done()

    def stop(self, error: BaseException | None) -> None:
        """End the program with an error after which it cannot go on; None says nothing."""
        if error is not None and not self.told.done():
            self.told.set_result(error)
