"""Redaction of secrets in command lines.  A value is a secret if its name, or its own prefix, says so."""

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
# A line without any of these holds no secret.  Patterns are compiled only when needed, since the command waits.
_HINTS: Final = (
    *("secret", "pass", "credential", "auth", "key", "token", "cookie", "bearer", "basic", "pwd", "jwt", "sig", "@"),
    *("hf_", "sk-", "sk_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox", "xapp-", "npm_"),
    *("akia", "asia", "aiza", "ya29.", "pypi-", "dckr_pat_", "eyj"),
)
# The end of a name decides: `--token-count` and `--key_dim` are properties, and not secrets.
_ANY: Final = r"secrets?|passw(?:or)?ds?|passphrase|credentials?|authorization|token|jwt"
_WORD: Final = r"(?<![a-z])(?:key|auth|cookies?|bearer|pass|pwd|sig)|signature|(?:db|pg)pass"
_KEYS: Final = (
    r"(?:api|access|private|encryption|wandb|ssh|signing|account)[-_.]?key|(?:api|access|auth)[-_]tokens|^tokens"
)
_NAME: Final = rf"(?:{_ANY}|{_WORD}|{_KEYS})[-_.]?\d*$"
# Names from models and data sets, and switches.
_OTHER: Final = (
    r"(?:^|[-_.])(?:(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|start|end|stop|special|next|new|per|last|first)"
    r"[-_]?token|(?:text|sort|monitor|label|image|input|output|target|state|dict|column|feature|caption|group|primary|"
    r"foreign|query|metric|video|audio|prompt|response|chosen|rejected|cache|partition|data|dataset)[-_]?key)$"
)
_SWITCH: Final = r"-{0,2}(?:use|no|enable|disable|skip|require|has|with)[-_]"
_PLAIN: Final = r"(?:true|false|none|null|auto|yes|no|on|off|\d{1,6}(?:\.\d*)?)"
_HUMP: Final = r"([a-z0-9])([A-Z])"
_BARE: Final = r"(?:\\.|[^\s'\"&;,\\])+"
_TEXT: Final = rf"'[^']*'|\"(?:[^\"\\]|\\.)*\"|(?:(?:Bearer|Basic)\s+)?{_BARE}"
_HEADER: Final = rf"(?:[A-Za-z][\w-]*\s+(?!-))?{_BARE}"  # a scheme and its credentials
_COOKIES: Final = r"[^\s'\";]+(?:;\s*[^\s'\";]+)*"
_GIVEN: Final = r"(?<![\w.-])([\w.-]+)(?:['\"]\]?\s*[=:,]|\s*[=:])\s*"  # NAME=VALUE, NAME: VALUE, "NAME", VALUE
_OPTION: Final = r"(?<!\S)(--?[\w.-]+)\s+(?!--)"  # --NAME VALUE
_OTHERS: Final = (
    # In a URL: a user with a password, or a token in place of a user.
    (r"(?<![\w+.-])([A-Za-z][\w+.-]*://)(?:[^\s/'\":@]*:[^\s/'\"]*|[^\s/@'\"]{12,})@", rf"\1{MASK}@"),
    (r"\b(Bearer|Basic)\s+[\w.~+/=-]{12,}", rf"\1 {MASK}"),
    # Secrets that are recognised by their prefix.
    (
        r"(?<![\w/.-])(?:hf_[A-Za-z0-9]{20,}(?!\w)|(?:gh[oprsu]_|github_pat_|glpat-|npm_|pypi-|dckr_pat_)[\w-]{12,})",
        MASK,
    ),
    (r"(?<![\w/.-])(?:sk[-_]|xox[abp]-|xapp-|ya29\.|AKIA|ASIA|AIza|eyJ)[\w.-]{12,}", MASK),
)


def is_secret(name: str) -> bool:
    """Whether an option or a variable of this name holds a secret."""
    lower = re.sub(_HUMP, r"\1_\2", name[-64:]).lower().lstrip("-+")
    # `pwd` alone is the working directory.
    return lower != "pwd" and re.search(_NAME, lower) is not None and re.search(_OTHER, lower) is None


def redact(line: str) -> str:
    """A line of a shell, a header or a URL, without the values of secrets in it."""
    if not _may_hold_secret(line):
        return line
    for pattern in (_GIVEN, _OPTION):
        line = _mask(line, pattern)
    for pattern, instead in _OTHERS:
        line = re.sub(pattern, instead, line)
    return line


def redact_option(name: str, text: str) -> str:
    """The text of an option of ftrun, on one line; the path of a webhook is a secret too."""
    if name == "webhook":
        text = re.sub(r"(://[^/\n]*/)[^\n]+", rf"\1{MASK}", text)
    return redact(text).replace("\n", ", ")


def redact_command(words: Sequence[str]) -> list[str]:
    """The arguments of a command line, without the values of secrets in them."""
    found: list[str] = []
    hidden = False  # the argument before was the name of a secret
    for word in words if _may_hold_secret(" ".join(words)) else ():
        name, equals, value = word.partition("=")
        hide, hidden = hidden and not word.startswith("--") and not _is_plain(word), False
        if hide:
            found.append(MASK)
        elif equals and re.fullmatch(r"[\w.+-]+", name) and is_secret(name):
            found.append(word if _is_plain(value) else f"{name}={MASK}")
        else:
            found.append(redact(word))
            hidden = re.fullmatch(r"--?[\w.-]+", word) is not None and is_secret(word) and not _is_switch(word)
    return found or list(words)


def _may_hold_secret(line: str) -> bool:
    lower = line.lower()
    return any(hint in lower for hint in _HINTS)


def _is_plain(value: str) -> bool:
    """Whether a value is too plain to be a secret: a number, or a word such as `true` or `none`."""
    return re.fullmatch(_PLAIN, value.strip("'\""), re.IGNORECASE) is not None


def _is_switch(name: str) -> bool:
    """Whether an option of this name takes no value."""
    return re.match(_SWITCH, name) is not None


def _mask(line: str, pattern: str) -> str:
    """The line without the values that follow the names of secrets, which `pattern` finds."""
    known = re.compile(pattern)
    shown, at = [], 0
    while (found := known.search(line, at)) is not None:
        shown.append(line[at : found.end()])
        at, name = found.end(), found[1].lower()
        if not is_secret(found[1]) or (pattern is _OPTION and _is_switch(name)):
            continue
        value = _HEADER if "authorization" in name else _COOKIES if "cookie" in name else _TEXT
        hidden = re.compile(value).match(line, at) or re.compile(_TEXT).match(line, at)
        if hidden is not None and not _is_plain(hidden[0]):
            shown.append(MASK)
            at = hidden.end()
    return "".join((*shown, line[at:]))
