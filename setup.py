"""What a package index shows of README.md: it cannot follow links into this repository, so they are words there, without pictures."""

import re
from pathlib import Path

from setuptools import setup

_PICTURE = re.compile(r"^!\[[^][]*\]\((?!https?:)[^()\s]+\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^][]*)\]\((?!https?:)[^()\s]+\)")

readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(long_description=_LINK.sub(r"\1", _PICTURE.sub("", readme)), long_description_content_type="text/markdown")
