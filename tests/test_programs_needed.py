"""What the machine lacks is said, and is a failure where continuous integration runs the tests."""

import re
from pathlib import Path

import pytest

from tests.programs_needed import PACKAGES, REQUIRED, need

ROOT = Path(__file__).parents[1]


def test_a_test_for_which_a_program_is_lacking_is_skipped_and_fails_where_none_may_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install iproute2 iptables"):
        need("ip", "iptables")
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install etcd-server"):
        need("etcd")
    program = tmp_path / "etcd"
    program.touch(0o755)
    need("etcd")


def test_a_mark_is_looked_at_before_a_test_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    request.node.add_marker(pytest.mark.needs("tmux"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match="tmux"):
        request.config.hook.pytest_runtest_setup.call_extra([], {"item": request.node})


def test_continuous_integration_installs_all_of_it_and_lets_nothing_be_lacking() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    listed = re.search(r"^packages=\(([^)]*)\)$", run, re.MULTILINE)
    assert listed is not None
    assert set(listed[1].split()) == set(PACKAGES.values())
    assert re.search(rf"^export {REQUIRED}=1$", run, re.MULTILINE)


def test_no_test_has_another_way_to_be_skipped_for_want_of_a_program() -> None:
    others = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__) and "skipif(shutil.which" in path.read_text()]
    assert others == []
