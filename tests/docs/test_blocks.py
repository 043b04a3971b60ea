"""Every block of Python and shell in README, CONTRIBUTING, docs/ and examples/ runs.

A comment in front of a block says how, where it does not run as it stands:

    <!-- runs: COMMAND && COMMAND -->      these instead: what is shown takes minutes, or a network
    <!-- before: COMMAND && COMMAND -->    these first

Blocks run in a folder of their own that looks like the repository, with the paths that the text speaks of.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a process or several for each block

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES.append(ROOT / "examples" / "README.md")
BLOCK = re.compile(r"(?:<!-- (runs|before): (.*?) -->\n)?```(\w*)\n(.*?)```", re.DOTALL)
#: Blocks that are not run: what is drawn, and what a program printed.
SHOWN = {"mermaid", "text"}
SHELL = {"bash", "console"}
#: A script as a user would have it.
SCRIPT = "import sys\nimport patcher\nassert patcher.status().rewrites\nprint('trained', *sys.argv[1:])\n"


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    how: str
    commands: str

    @property
    def script(self):
        """What the shell runs."""
        if self.how == "runs":
            return self.commands
        lines = [line.removeprefix("$ ") for line in self.text.splitlines()]
        if self.language == "console":  # the other lines are what was printed
            lines = [line for line in self.text.splitlines() if line.startswith("$ ")]
        return "\n".join([*([self.commands] if self.how == "before" else []), *lines])


def blocks():
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            how, commands, language, body = match.groups()
            line = text.count("\n", 0, match.start(3)) + 1
            found.append(Block(page.relative_to(ROOT).as_posix(), line, language, body, how or "", commands or ""))
    return found


BLOCKS = blocks()


def named(language):
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in BLOCKS if block.language in language]


@pytest.fixture
def folder(tmp_path):
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run(command, folder):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PATCHER_")}
    fixed = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    fixed |= {"HF_HUB_OFFLINE": "1", "CI": "1", "PIP_NO_INPUT": "1"}
    done = subprocess.run(command, cwd=folder, env=inherited | fixed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("block", named({"python"}))
def test_python(block, folder):
    assert block.how != "runs", "Python blocks run as they stand"
    if block.how == "before":
        run(["bash", "-e", "-c", block.commands], folder)
    run([sys.executable, "-c", block.text], folder)


@pytest.mark.parametrize("block", named(SHELL))
def test_shell(block, folder):
    run(["bash", "-e", "-c", block.script], folder)


def test_no_block_is_left_out():
    assert {block.language for block in BLOCKS} <= {"python"} | SHELL | SHOWN
    fences = sum(page.read_text(encoding="utf-8").count("```") for page in PAGES)
    assert len(BLOCKS) * 2 == fences
    comments = sum(len(re.findall(r"<!-- (?:runs|before):", page.read_text(encoding="utf-8"))) for page in PAGES)
    assert comments == sum(1 for block in BLOCKS if block.how)
