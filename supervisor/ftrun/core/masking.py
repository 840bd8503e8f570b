"""What is not written down: the values of secrets in command lines, told by the names that they are given."""

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
# Where none of these is, there is nothing to hide.  Patterns are compiled when needed: the command waits for us.
_HINTS: Final = (
    *("secret", "passw", "passphrase", "credential", "auth", "key", "token", "cookie", "bearer", "basic", "pwd", "@"),
    *("hf_", "sk-", "gho_", "ghp_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox", "akia", "eyj"),
)
# Anywhere in a name; and words of one, so that `--tokenizer`, `--max-tokens` and `--keyboard` show their values.
_PARTS: Final = r"secret|passw(?:or)?d|passphrase|credential|authorization|api[-_.]?key|(?:access|private)[-_.]?key"
_NAME: Final = rf"{_PARTS}|(?<![a-z])(?:keys?|token|auth|cookies?|bearer|pwd)(?![a-z])"
_HUMP: Final = r"([a-z0-9])([A-Z])"
_TEXT: Final = r"'[^']*'|\"[^\"]*\"|(?:(?:Bearer|Basic)\s+)?[^\s'\"&;,]+"
_GIVEN: Final = r"(?<![\w.-])([\w.-]+)['\"]?\s*[=:]\s*"  # NAME=VALUE, NAME: VALUE
_OPTION: Final = r"(?<!\S)(--?[\w.-]+)\s+(?!--)"  # --NAME VALUE
_OTHERS: Final = (
    (r"(?<![\w+.-])([A-Za-z][\w+.-]*://)[^\s/@'\"]+@", rf"\1{MASK}@"),  # user and password of a URL
    (r"\b(Bearer|Basic)\s+[\w.~+/=-]+", rf"\1 {MASK}"),
    (r"\b(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|eyJ)[\w.-]{16,}", MASK),  # told by what they begin with
)


def secret(name: str) -> bool:
    """Whether what has this name is one, of an option or a variable."""
    lower = re.sub(_HUMP, r"\1_\2", name).lower().lstrip("-+")
    return lower != "pwd" and re.search(_NAME, lower) is not None  # that one is the working directory


def text(line: str) -> str:
    """A line of a shell, a header or a URL, without the values of secrets in it."""
    if not _may(line):
        return line
    for pattern in (_GIVEN, _OPTION):
        line = _masked(line, pattern)
    for pattern, instead in _OTHERS:
        line = re.sub(pattern, instead, line)
    return line


def command(words: Sequence[str]) -> list[str]:
    """A command line, word by word."""
    found: list[str] = []
    hidden = False  # the last word was the name of a secret
    for word in words if _may(" ".join(words)) else ():
        name, equals, _ = word.partition("=")
        if hidden and not word.startswith("--"):
            found.append(MASK)
        elif equals and re.fullmatch(r"[\w.+-]+", name) and secret(name):
            found.append(f"{name}={MASK}")
        else:
            found.append(text(word))
        hidden = not hidden and re.fullmatch(r"--?[\w.-]+", word) is not None and secret(word)
    return found or list(words)


def _may(line: str) -> bool:
    lower = line.lower()
    return any(hint in lower for hint in _HINTS)


def _masked(line: str, pattern: str) -> str:
    """Without the values that follow where the pattern has found the name of a secret."""
    known, value = re.compile(pattern), re.compile(_TEXT)
    shown, at = [], 0
    while (found := known.search(line, at)) is not None:
        shown.append(line[at : found.end()])
        at = found.end()
        if secret(found[1]) and (hidden := value.match(line, at)) is not None:
            shown.append(MASK)
            at = hidden.end()
    return "".join((*shown, line[at:]))
