"""What README, CONTRIBUTING and docs/ tell people to type exists."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from patcher.cli.app import app

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
SHELL = "\n".join(block for language, block in BLOCKS if language == "bash") + "\n".join(
    re.findall(r"`([^`\n]+)`", TEXT)
)


def test_each_patcher_command_exists():
    named = set(re.findall(r"^(?:.*-m )?patcher ([a-z]+)", SHELL, re.MULTILINE))
    assert len(named) > 3
    assert named <= set(get_command(app).commands)


def test_each_make_target_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", SHELL, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_each_environment_variable_is_read():
    source = "\n".join(path.read_text() for name in ("patcher", "replacements") for path in (ROOT / name).rglob("*.py"))
    named = set(re.findall(r"PATCHER_[A-Z_]+", TEXT))
    assert named
    assert all(name in source for name in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_local_link_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
