"""Logs as JSON: one object a line, whatever is logged."""

import io
import json
import logging
from typing import Any

import pytest

from manta_swarm.runtime.console import JsonLines, json_line


@pytest.fixture
def logged() -> Any:
    """A logger, and what it wrote."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("manta.test")
    logger.addHandler(handler)
    return logger, lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_and_its_fields_are_members(logged: Any) -> None:
    logger, lines = logged
    logger.warning("round committed round=%d peers=%d mean_s=%.2f state=%s", 7, 5, 1.5, "00ff")
    (line,) = lines()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "manta.test",
        "event": "round committed",
        "round": 7,
        "peers": 5,
        "mean_s": 1.5,
        "state": "00ff",
    }


@pytest.mark.parametrize(
    ("message", "event", "fields"),
    [
        ("nothing but words", "nothing but words", {}),
        ("not written path=/a b/c reason=no space left", "not written", {"path": "/a b/c", "reason": "no space left"}),
        ("refused reason=", "refused", {"reason": ""}),
        ("a line\nand another round=1\nthird", "a line\nand another", {"round": "1\nthird"}),
        ("digest=000123 big=12345678901234567890", "", {"digest": "000123", "big": "12345678901234567890"}),
        ("what level=7 event=x", "what", {"level_": 7, "event_": "x"}),
        ('"quoted" = no field', '"quoted" = no field', {}),
        ("", "", {}),
    ],
)
def test_any_message_is_one_line_and_nothing_of_it_is_lost(message: str, event: str, fields: dict[str, object]) -> None:
    text = json_line(message, level="info", logger="x", at_s=0.0)
    assert "\n" not in text
    line = json.loads(text)
    assert line.pop("time") == "1970-01-01T00:00:00.000Z"
    assert line == {"level": "info", "logger": "x", "event": event, **fields}


def test_a_traceback_is_in_the_same_line(logged: Any) -> None:
    logger, lines = logged
    try:
        raise ValueError("wrong")
    except ValueError:
        logger.exception("failed what=all")
    (line,) = lines()
    assert (line["event"], line["what"]) == ("failed", "all")
    assert "ValueError: wrong" in line["traceback"]
