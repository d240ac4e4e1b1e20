"""Parse and run pages of the documentation: code blocks with their directives, commands, links, anchors."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support import warm

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$", re.M | re.S
)
DIRECTIVE = re.compile(r"<!-- test: (\w+) ?(.*?) ?-->$")
SHELL = ("bash", "sh", "shell")
CONTROL = {"&&", "||", ";", "|", "&"}


def pages() -> list[Path]:
    """Return all pages for readers: those in the top directory and in docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass
class Block:
    """A fenced block of a page and the directives on the lines directly above it."""

    language: str
    text: str
    line: int
    directives: list[tuple[str, str]] = field(default_factory=list)

    @property
    def skipped(self) -> str | None:
        """Why tests do not run the block, or None."""
        return next((rest or "no reason" for name, rest in self.directives if name == "skip"), None)

    def runnable(self) -> str:
        """Return the text after applying its directives, which replace and append.

        Raises:
            AssertionError: a directive is unknown, or replaces text that the block does not have.
        """
        text = self.text.rstrip("\n")
        for name, rest in self.directives:
            if name == "replace":
                old, arrow, new = rest.partition(" -> ")
                assert arrow and old in text, f"line {self.line}: there is no {old!r} to replace"
                text = text.replace(old, new)
            elif name == "append":
                text += f" {rest}"
            else:
                assert name == "skip" and rest, f"line {self.line}: unknown directive {name} {rest}"
        return text + "\n"


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found = []
    for match in FENCE.finditer(text):
        directives = []
        for line in reversed(text[: match.start()].splitlines()):
            directive = DIRECTIVE.match(line.strip())
            if directive is None:
                break
            directives.insert(0, (directive[1], directive[2]))
        body = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.M)
        found.append(Block(match["language"], body, text.count("\n", 0, match.start()) + 1, directives))
    return found


def without_blocks(text: str) -> str:
    """Return the page without its fenced blocks."""
    return FENCE.sub("", text)


def shell_commands(text: str) -> list[list[str]]:
    """Return the simple commands of a bash block as lists of words, without variable assignments before them.

    Redirections stay among the words.
    """
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in CONTROL:
                words.append(word)
                continue
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                found.append([expanded for word in words for expanded in _expanded(word)])
            words = []
    return found


def _expanded(word: str) -> list[str]:
    """Expand braces as bash does: {a,b}.yaml becomes a.yaml and b.yaml."""
    match = re.search(r"\{([^{}\s\"':]*,[^{}\s\"':]*)\}", word)
    if match is None:
        return [word]
    return [
        expanded
        for part in match[1].split(",")
        for expanded in _expanded(word[: match.start()] + part + word[match.end() :])
    ]


def inline_code(text: str) -> list[str]:
    """Return the texts between backticks, outside fenced blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", without_blocks(text))


# A link or an image, or a link around an image.
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\[\]]*\]|!\[[^\]]*\]\([^)]*\))*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")


def links(text: str) -> list[str]:
    """Return the targets of a page's links and images."""
    text = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "", without_blocks(text))
    inner = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
    return list(dict.fromkeys([*LINK.findall(text), *inner, *re.findall(r"^\[[^\]]+\]:\s+(\S+)", text, re.M)]))


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page: its headings as GitHub names them, and `<a id=...>`."""
    text = path.read_text(encoding="utf-8")
    found: dict[str, int] = {}
    names = set(re.findall(r"""<a (?:id|name)=["']([^"']+)["']""", text)) | set(re.findall(r"^\(([\w-]+)\)=$", text, re.M))
    for heading in re.findall(r"^ {0,3}#{1,6}\s+(.*?)\s*#*$", without_blocks(text), re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"<[^>]+>", "", heading))
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return frozenset(names)


def run_page(text, folder, monkeypatch, capfd):
    """Run a page's shell and Python blocks in `folder`; other blocks are only for reading.

    Python blocks share their variables, as in one session. Blocks that need a shell run in one; in others `hf-tlm` starts
    warm.
    """
    monkeypatch.chdir(folder)
    names = {"__name__": "__main__"}
    for block in blocks(text):
        if block.skipped or block.language not in (*SHELL, "python"):
            assert block.skipped or not block.directives, f"line {block.line}: directives of a block that does not run"
            continue
        code = block.runnable()
        if block.language == "python":
            exec(compile("\n" * block.line + code, "the page", "exec"), names)
            continue
        for words in _plain(code) or [["bash", "-euo", "pipefail", "-c", code]]:
            if words[0] == "hf-tlm":
                done = warm.command(words[1:], folder=folder, limit=600)
                status, out, err = done.status, done.stdout, done.stderr
            else:
                status = subprocess.run(words, cwd=folder, check=False, timeout=600).returncode
                out, err = capfd.readouterr()
            assert status == 0, f"line {block.line}:\n{code}\n{out[-3000:]}\n{err[-3000:]}"


def _plain(code: str) -> list[list[str]]:
    """Return the commands of a block that runs `hf-tlm` and needs no shell, to run one after another; else an empty list."""
    commands = shell_commands(code)
    if re.search(r"[;|&<>$`*?#(]", code.replace("&&", "")) or not any(words[0] == "hf-tlm" for words in commands):
        return []
    return commands
