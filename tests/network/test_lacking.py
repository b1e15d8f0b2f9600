"""A lone operator that lacks something has no other to name; one of several has."""

from manta_swarm.network.operator_line import AskAnother, lacking
from manta_swarm.protocol.errors import Unreachable
from manta_swarm.protocol.signing import Identity
from tests.audited import OPERATOR, audited_ledger


def test_one_of_several_operators_that_lacks_something_names_the_others() -> None:
    alone, several = audited_ledger(), audited_ledger(operators=(OPERATOR, Identity(b"\x05" * 32)))
    assert str(lacking(alone, "not here")) == "not here"
    assert isinstance(lacking(alone, "not here"), Unreachable)
    assert isinstance(lacking(several, "not here"), AskAnother)
    assert str(lacking(several, "not here")) == "ask another operator: not here"
