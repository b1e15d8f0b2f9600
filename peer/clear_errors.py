"""How each command of manta-peer ends when something is wrong."""

from functools import partial

from runtime.commands import ending_in_a_line

clear_errors = partial(ending_in_a_line, "manta-peer")
