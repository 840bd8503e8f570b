"""Why the command failed, and whether a restart can help.

There are three sources: the tracebacks that Python processes left, the last lines of output where they are kept, and
the exit status.  `first_cause` finds the first cause among many tracebacks, and `diagnose` finds the first of RULES
that applies.  In doubt a restart is assumed to help: if wrong, it costs a few restarts; the opposite error costs a job.
"""

import builtins
import re
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.first_death import Death
from ftrun.core.text.sentences import printable, rank, short, signal

TICK: Final = 0.01  # s; the resolution of a process's start time in the kernel
SOON: Final = 3.0  # s; an exit code that comes later has another cause than the traceback of another process
PARSED: Final = 60.0  # s; a program that has run for longer does not end because of its arguments
FRESH: Final = 120.0  # s; launchers give the others half a minute to end, and print their own message last
AFTER: Final = 12  # lines of output that may follow the line of an exception: the rest of its message, advice
LONGEST: Final = 300


class ExceptionRecord(NamedTuple):
    """An exception.  `kinds`: its class and the base classes, by full name; `message`: the first line of the message,
    and `more` of it; `where` it was raised; `own`: the last line of the program's own code in the traceback; `frames`:
    the innermost ones as `file.py:function`, that of the raise last; `source`: the line of code that raised it;
    `stack`: where each frame was, that of the raise first, as `file.py:88 in function`."""

    kinds: tuple[str, ...]
    message: str = ""
    more: str = ""
    where: str = ""
    own: str = ""
    frames: tuple[str, ...] = ()
    source: str = ""
    stack: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The exception as Python prints it."""
        name = self.kinds[0] if self.kinds else "an exception"
        return f"{name}: {self.message}" if self.message else name


class Traceback(NamedTuple):
    """The exception that ended a Python process.  `parents` goes up from the parent; `started` is 0 if unknown; `root`
    is the first exception of the chain, and `explicit_cause`: the program itself names it as the cause (`raise ...
    from`).  `children`: the failed children that a launcher reports."""

    pid: int
    thrown: ExceptionRecord
    parents: tuple[int, ...] = ()
    started: float = 0.0
    at: float = 0.0
    rank: int | None = None
    program: str = ""
    root: ExceptionRecord | None = None
    explicit_cause: bool = False
    children: tuple[Death, ...] = ()

    @property
    def chain(self) -> tuple[ExceptionRecord, ...]:
        """The exceptions that explain the end; one that was merely being handled at the time does not."""
        return (self.thrown, self.root) if self.root is not None and self.explicit_cause else (self.thrown,)

    @property
    def description(self) -> str:
        who = "" if self.rank is None else f"{rank(self.rank)}: "
        return who + ", from ".join(_described(thrown) for thrown in self.chain)


def _described(thrown: ExceptionRecord) -> str:
    where = thrown.own or thrown.where
    return f"{thrown.line} ({where})" if where else thrown.line


# --- the first cause --------------------------------------------------------------------------------------------------


class Symptom(NamedTuple):
    """An exception that ends a process because another process failed."""

    kind: str
    message: str = ""


OF_PEERS: Final = (  # ranks, because of a peer
    Symptom("torch.distributed.DistError"),
    Symptom("torch.distributed.elastic.rendezvous.api.RendezvousError"),
    Symptom("ConnectionError"),
    Symptom("EOFError", r"^$"),  # from a pipe; an EOFError of a file has a message
    Symptom("Exception", r"(?i)(connection|socket) (was )?(closed|reset)( by (remote )?peer)?\b|broken pipe"),
    Symptom("Exception", r"(?i)watchdog .*time.?out|(nccl|hccl|gloo) .*(time.?out|timed out|remote|abort)"),
    Symptom("Exception", r"(?i)nccl (communicator was aborted|error)|timed out waiting \d+ ?ms"),
    Symptom("Exception", r"\bEI000[26]\b"),  # HCCL: no notification, no connection from the other side
    Symptom("RuntimeError", r"^(Socket Timeout|wait timeout after|The client socket has (timed out|failed))"),
)
SYMPTOMS: Final = (
    *OF_PEERS,
    # launchers and parents, because of a child
    Symptom("torch.distributed.elastic.multiprocessing.errors.ChildFailedError"),
    Symptom("torch.distributed.elastic.multiprocessing.api.SignalException"),
    Symptom("torch.multiprocessing.spawn.ProcessException"),
    Symptom("subprocess.CalledProcessError"),
    Symptom("concurrent.futures._base.BrokenExecutor"),
    Symptom("ray.exceptions.RayError"),
    Symptom("RuntimeError", r"^DataLoader worker .*(exited unexpectedly|is killed by signal)"),
    Symptom("RuntimeError", r"^Pin memory thread exited"),
    # any process, because the interpreter is ending
    Symptom("Exception", r"Python is likely shutting down|(after|at) (interpreter )?shutdown"),
)


def is_symptom(chain: tuple[ExceptionRecord, ...], symptoms: tuple[Symptom, ...] = SYMPTOMS) -> bool:
    return any(s.kind in t.kinds and re.search(s.message, t.message) for t in chain for s in symptoms)


def first_cause(tracebacks: list[Traceback], ended: float | None = None) -> Traceback | None:
    """The first cause, and not the last symptom.  `ended`: when the command ended; tracebacks from long before that are
    ignored.

    The search begins with the process that died last.  If it died because of a child, the cause is below it.  Otherwise
    the cause is the first among its peers that did not die because of another process.  Peers are processes of the same
    program that lived at the same time and have the same parent, or are ranks as well.  So processes that failed
    earlier, and those that a program starts beside itself, do not count.
    """
    last: dict[int, Traceback] = {}
    for one in sorted(tracebacks, key=lambda t: (t.at, t.pid, repr(t))):
        last[one.pid] = one  # a process may leave several tracebacks; the last one ended it
    found = sorted(last.values(), key=lambda t: (t.at, t.pid))
    if not found or (ended is not None and ended - found[-1].at > FRESH):
        return None
    return _first(found)


def _first(found: list[Traceback]) -> Traceback:
    last = found[-1]
    if is_symptom(last.chain) and (below := _below(last, found)):
        return _first(below)
    peers = [one for one in found if one is last or _are_peers(one, last)]
    causes = [one for one in peers if not is_symptom(one.chain)]
    for peer in peers:
        if is_symptom(peer.chain):
            causes += [one for one in _below(peer, found) if not is_symptom(one.chain)]
    return min(causes or peers, key=lambda t: (t.at, t.pid))


def _below(parent: Traceback, found: list[Traceback]) -> list[Traceback]:
    return [t for t in found if parent.pid in t.parents and t.pid != parent.pid and _overlapped(t, parent)]


def _are_peers(one: Traceback, last: Traceback) -> bool:
    related = one.parents[:1] == last.parents[:1] or (one.rank is not None and one.rank != last.rank)
    return (
        related and one.program == last.program and (one.rank is None) == (last.rank is None) and _overlapped(one, last)
    )


def _overlapped(earlier: Traceback, later: Traceback) -> bool:
    """Whether the process that died first still lived when the other began."""
    return earlier.at >= later.started + TICK or not later.started


# --- the diagnosis ----------------------------------------------------------------------------------------------------


class CrashStack(NamedTuple):
    """`error`: as `Segmentation fault`.  `frames`: of the thread that crashed, the innermost first, as
    `train.py:68 in step`; `place`: the innermost one of the program's own code, else of any."""

    error: str
    frames: tuple[str, ...]
    place: str


class CommandFailure(NamedTuple):
    """How the command ended, and when (`ended`).  `pid`: of the command; `oom_kills`: how many of its processes
    the kernel killed because memory ran out; `tail`: its last lines of output, where they are kept.  `death`: a process
    that left no exception, and caused the end of the process in `cause`; `also`: a related fact for the reason;
    `crash`: the stack of a process that a signal ended; `output`: the files with its output, which nobody else keeps,
    and their sizes.  `accepted`: its arguments were accepted before, by an earlier start or for `PARSED` seconds."""

    code: int | None = None
    signal: int | None = None
    beaten: bool = False
    cause: Traceback | None = None
    tail: tuple[str, ...] = ()
    oom_kills: int | None = None
    pid: int = 0
    ended: float | None = None
    death: Death | None = None
    also: str = ""
    crash: CrashStack | None = None
    output: tuple[tuple[str, int], ...] = ()
    accepted: bool = False

    @property
    def stack(self) -> tuple[str, ...]:
        """The calls in which it ended, the innermost first; empty where they are not known."""
        if self.crash is not None:
            return self.crash.frames
        return self.cause.chain[-1].stack if self.cause is not None and self.death is None else ()

    @property
    def explained(self) -> bool:
        """Whether the traceback explains how the command ended.  That of another process may not: it explains an exit
        like Python's 1, but neither a code for misuse nor a signal; and a program may let a one-liner fail."""
        if self.cause is None or self.cause.pid == self.pid:
            return self.cause is not None
        if self.code != 1 and self.ended is not None and self.ended - self.cause.at > SOON:
            return False
        return 0 < (self.code or 0) < 126 and self.code != 2 and self.cause.program != "-c"


class Diagnosis(NamedTuple):
    """`why` is for people, `rule` names the rule that decided, `line` is the last line of the traceback, if there is
    one: equal lines mean the same failure."""

    recoverable: bool
    why: str
    rule: str
    line: str | None = None


class CrashRule(NamedTuple):
    """A rule applies if all its conditions hold: one of `kinds` (`package.*`: all of a package, `*Name`: all classes
    whose names end so) is in the chain of exceptions, with `text` in its message; one of `roots` is below it; without a
    chain the status is one of `codes` (128 + n for signal n); `output` is in the last lines; `reading`: it was raised
    while a configuration was read; `unless_accepted`: no earlier start, and no longer run, has shown that the arguments
    are right."""

    name: str
    recoverable: bool
    why: str
    kinds: tuple[str, ...] = ()
    text: str = ""
    roots: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    output: str = ""
    before_first_beat: bool = False
    by_kernel: bool = False
    reading: bool = False
    unless_accepted: bool = False


COMPILERS: Final = (
    "torch._dynamo.*",
    "torch._inductor.*",
    "torch._export.*",
    "torch.export.*",
    "torch.fx.*",
    "torch.jit.frontend.*",
    "triton.*",
    "jax.errors.JAXTypeError",
    "*CompilationError",
    "*CompileError",
)
CONFIGURATION: Final = (
    "omegaconf.errors.OmegaConfBaseException",
    "hydra.errors.HydraException",
    "pydantic_core._pydantic_core.ValidationError",
    "pydantic.error_wrappers.ValidationError",
    "pydantic.errors.PydanticUserError",
    "jsonschema.exceptions.ValidationError",
    "yaml.*",
    "ruamel.yaml.*",
    "tomllib.*",
    "tomli.*",
    "toml.decoder.*",
    "tomlkit.exceptions.*",
    "configparser.Error",
    "argparse.ArgumentError",
    "click.exceptions.UsageError",
    "absl.flags._exceptions.Error",
    "*ConfigError",
    "*ConfigurationError",
    "lightning.fabric.utilities.exceptions.MisconfigurationException",
    "lightning_fabric.utilities.exceptions.MisconfigurationException",
)
# What shows that a configuration is being read: the name of a function or of a file of the program, or the line.
NAMES: Final = r"(?:config(?:uration)?|cfg|conf|settings|hparams|hyperparameters)"
READERS: Final = re.compile(
    rf"(?!.*_and_)_*(?:(?:load|read|parse|validate|check|resolve|merge)_(?:\w+_)?{NAMES}s?"
    r"|(?:load|read|parse)_(?:\w+_)?(?:yaml|toml|args|arguments|options|flags)"
    r"|(?:load|read|parse)\w*(?:Config|Settings|Args)|from_(?:yaml|toml|ini|json_file|args))"
)
READING_PLACES: Final = re.compile(
    r"(?:\w+_)?(?:configs?|configuration|cfg)(?:_\w+)?\.py:\d+ in (?!(?:main|run|train|fit)$).*"
)
VALUES: Final = rf"(?:\w+_)?{NAMES}\b(?:\.\w+)*?"
READING_LINES: Final = re.compile(rf"\b{VALUES}(?:\[|\.get\()|\b(?:int|float|bool)\((?:\w+\.)?{VALUES}")
# A missing file of this name is one of the configuration.  Those in checkpoints may not be complete yet.
MISSING: Final = (
    r"No such file or directory: ['\"](?!.*(?:checkpoint|ckpt))(?:.*/)?"
    r"(?:[^/]+\.(?:ya?ml|toml|ini|cfg|conf|gin)|[^/]*(?:config|cfg|settings|hparams|args)[^/]*\.json)['\"]"
)
# A build tool that failed, and why it may succeed on another try.
BUILD: Final = (
    r"nvcc fatal|ninja: build stopped|^Command .{0,99}\b(?:nvcc|ninja|hipcc)\b.* returned non-zero exit status"
)
PASSING: Final = r"killed|no space left|input/output error|stale file handle|cannot allocate|too many open files"

XLA: Final = ("jaxlib.xla_extension.XlaRuntimeError", "jaxlib._jax.XlaRuntimeError", "jax.errors.JaxRuntimeError")
MEMORY: Final = ("MemoryError", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")

# What several rules have in common: the name, whether a restart can help, and the reason.
MEMORY_RULE: Final = ("memory", True, "out of memory")
FAILED_MACHINE: Final = ("machine", True, "a disk or a device failed, or a limit of the machine was reached")
UNUSABLE_FILE: Final = ("machine", True, "a file or a connection could not be used")
MISSING_MODULE: Final = ("import", False, "a restart installs nothing")
COMPILATION: Final = ("compile", False, "the same program is compiled again with the same result")
ASSERTION: Final = ("assertion", False, "a failed assertion fails again")
WRONG_CONFIGURATION: Final = ("configuration", False, "a restart does not change the configuration")
RULES: Final = (
    CrashRule(
        "kernel-memory", True, "the kernel killed {oom_kills} of its processes for lack of memory", by_kernel=True
    ),
    CrashRule(*MEMORY_RULE, kinds=MEMORY),
    CrashRule(*MEMORY_RULE, kinds=("RuntimeError", "torch.AcceleratorError"), text=r"(?i)out of memory"),
    CrashRule(*MEMORY_RULE, kinds=XLA, text=r"^RESOURCE_EXHAUSTED"),
    CrashRule(
        *FAILED_MACHINE,
        kinds=("ImportError", "SyntaxError", "OSError", *COMPILERS),
        text=r"(?i)stale file handle|input/output error|no space left|too many open files|endpoint is not connected"
        r"|resource temporarily unavailable|disk quota exceeded|cannot allocate memory(?! in static)",
    ),
    CrashRule(
        *FAILED_MACHINE,
        kinds=("RuntimeError", "subprocess.CalledProcessError"),
        text=rf"(?=.*(?:Error building extension|{BUILD})).*(?i:{PASSING})",
    ),
    CrashRule(
        *FAILED_MACHINE,
        codes=(1, 2, 255),
        output=r"(?i)killed signal terminated program|no space left on device|: cannot fork$",  # dash exits with 2
    ),
    CrashRule(*UNUSABLE_FILE, kinds=(*COMPILERS, *CONFIGURATION), roots=("OSError", "ConnectionError")),
    CrashRule(*UNUSABLE_FILE, kinds=("requests.*",)),
    CrashRule(
        "shutdown", True, "Python was shutting down", kinds=("Exception",), text="Python is likely shutting down"
    ),
    CrashRule("syntax", False, "a restart does not change the program", kinds=("SyntaxError",)),
    CrashRule(*MISSING_MODULE, kinds=("ImportError",)),
    CrashRule(*COMPILATION, kinds=COMPILERS),
    CrashRule(*COMPILATION, kinds=XLA, text=r"^UNIMPLEMENTED|ptxas exited|Mosaic failed|(?i:failed to compile)"),
    CrashRule(
        *COMPILATION,
        kinds=("RuntimeError",),
        text=r"Error building extension|Failed to compile Op\b|Compile operator failed|(?i:build graph failed)"
        r"|Compile graph .{0,99} failed|\b(E40021|EB0000)\b",  # CANN: TEFusion, TBE
    ),
    CrashRule(*COMPILATION, kinds=("RuntimeError", "subprocess.CalledProcessError"), text=BUILD),
    CrashRule(*COMPILATION, codes=(1, 2, 255), output=r"^nvcc fatal\b|^ninja: build stopped: "),
    CrashRule(*ASSERTION, kinds=("AssertionError",)),
    CrashRule(*WRONG_CONFIGURATION, kinds=CONFIGURATION, before_first_beat=True),
    CrashRule(
        *WRONG_CONFIGURATION,
        kinds=("json.decoder.JSONDecodeError",),
        text=r"\(char (?!0\))",  # nothing that is JSON at all may be a file that is being written, or an answer
        before_first_beat=True,
    ),
    CrashRule(*WRONG_CONFIGURATION, kinds=("FileNotFoundError",), text=MISSING, before_first_beat=True),
    CrashRule(
        *WRONG_CONFIGURATION,
        kinds=("TypeError",),
        text=r"^\w*(?:Config|Configuration|Settings|Args|Arguments|Options|HParams)\.__init__\(\) (?:got an|missing) ",
        before_first_beat=True,
    ),
    CrashRule(
        *WRONG_CONFIGURATION,
        kinds=("ValueError", "KeyError", "TypeError", "FileNotFoundError"),
        before_first_beat=True,
        reading=True,
    ),
    CrashRule(
        *("usage", False, "a restart does not change its arguments"),
        codes=(2,),
        before_first_beat=True,
        unless_accepted=True,
    ),
    CrashRule("command", False, "a restart does not provide the program", codes=(126, 127), before_first_beat=True),
    CrashRule(*MISSING_MODULE, codes=(127,), output="error while loading shared libraries: "),
    CrashRule(*MISSING_MODULE, codes=(1,), output=r"^\S*python[\d.]*: No module named "),
    CrashRule(*ASSERTION, codes=(134,), output=r"\bAssertion [`'].*' failed\.?$"),
    CrashRule("killed", True, "as platforms kill what exceeds its memory limit", codes=(137, 247)),
)


def diagnose(ending: CommandFailure) -> Diagnosis:
    """Whether a restart can help, and the reason as text."""
    chain = diagnose_chain(ending)
    line = chain[0].line if chain else None
    rule = next((rule for rule in RULES if _applies(rule, ending, chain)), None)
    first = ending.death or ending.cause
    more = f"; {ending.also}" if ending.also else ""
    more += f" ({ending.crash.place})" if ending.crash is not None else ""
    if first is not None and ending.explained:
        why = first.description
    else:
        why = f"the command exited with {ending.code}"
        if ending.signal is not None:
            why = f"{signal(ending.signal)} ended the command"
        why += f", after {line}" if line else ""
        why += f"; before that, {first.description}" if first is not None and first.pid != ending.pid else ""
    why = short(why, LONGEST - len(more)) + more
    if rule is None:
        return Diagnosis(True, why, "unknown", line)
    reason = rule.why.format(oom_kills=ending.oom_kills)
    return Diagnosis(rule.recoverable, f"{why}; {reason}", rule.name, line)


def diagnose_chain(ending: CommandFailure) -> tuple[ExceptionRecord, ...]:
    """The exceptions that explain the end: those of the traceback, else the one that was printed last, which is weaker
    evidence."""
    if ending.cause is not None:
        return ending.cause.chain if ending.explained and ending.death is None else ()
    printed = last_printed(ending.tail)
    return () if printed is None else (printed,)


def _applies(rule: CrashRule, ending: CommandFailure, chain: tuple[ExceptionRecord, ...]) -> bool:
    status = 128 + ending.signal if ending.signal is not None else ending.code
    if ending.death is not None and ending.death.code < 0 and ending.explained:
        status = 128 - ending.death.code
    if (rule.before_first_beat and ending.beaten) or (rule.unless_accepted and ending.accepted):
        return False
    if rule.by_kernel:
        killed = status in (137, 247) or not chain or is_symptom(chain)
        return bool(ending.oom_kills) and killed
    if rule.kinds and not any(_matches(thrown, rule) for thrown in chain):
        return False
    if rule.roots and not any(kind in thrown.kinds for thrown in chain[1:] for kind in rule.roots):
        return False
    if rule.codes and (status not in rule.codes or chain):
        return False
    if rule.reading and not _reads_configuration(chain):
        return False
    return not rule.output or any(re.search(rule.output, _split_prefix(line)[1]) for line in ending.tail[-AFTER:])


def _matches(thrown: ExceptionRecord, rule: CrashRule) -> bool:
    kind = any(_is_named(kind, name) for name in rule.kinds for kind in thrown.kinds)
    return kind and (re.search(rule.text, f"{thrown.message} {thrown.more}") is not None)


def _is_named(kind: str, name: str) -> bool:
    if name.startswith("*"):
        return kind.endswith(name[1:])
    return kind == name or (name.endswith("*") and kind.startswith(name[:-1]))


def _reads_configuration(chain: tuple[ExceptionRecord, ...]) -> bool:
    """Whether these exceptions were raised while a configuration was read, and not because of a disk or a network."""
    if any("OSError" in thrown.kinds and "FileNotFoundError" not in thrown.kinds for thrown in chain):
        return False
    return any(map(_was_reading, chain))


def _was_reading(thrown: ExceptionRecord) -> bool:
    if any(READERS.fullmatch(frame.rpartition(":")[2]) for frame in thrown.frames):
        return True
    place = thrown.own.partition(":")[0]
    is_program = thrown.frames[:1] == (f"{place}:<module>",)  # a program of such a name does all of its work there
    if READING_PLACES.fullmatch(thrown.own) and not is_program:
        return True
    return bool(thrown.own) and thrown.own == thrown.where and READING_LINES.search(thrown.source) is not None


# --- the last lines of output -----------------------------------------------------------------------------------------

# The prefix that torchrun and torch put before each line of a rank.
PREFIX: Final = re.compile(r"((?:\[(?!rank)[A-Za-z_]\w*?\d+\]:)?(?:\[rank\d+\]: ?)?)(.*)", re.DOTALL)
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
FRAME: Final = re.compile(r'  File "(.*)", line (\d+),? in (.*)')  # faulthandler writes no comma
LIBRARY: Final = re.compile(r"^<|-packages/|/lib/python3")
KEPT_FRAMES: Final = 16
LAST: Final = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")


def last_printed(tail: tuple[str, ...]) -> ExceptionRecord | None:
    """The exception of a traceback that Python printed at the very end.  One that was printed earlier, after which the
    program continued, does not count."""
    lines = [_split_prefix(line) for line in tail]
    for index in range(len(lines) - 1, max(0, len(lines) - AFTER) - 1, -1):
        prefix, text = lines[index]
        matched = LAST.fullmatch(text)
        above = [other for mark, other in lines[:index] if mark == prefix]
        if matched and _ends_with_frames(above):
            name, message = matched.groups()
            return ExceptionRecord(_bases(name), (message or "").strip(), *_printed_stack(above))
    return None


def _split_prefix(line: str) -> tuple[str, str]:
    """The prefix that names a rank, and the line."""
    matched = PREFIX.fullmatch(COLOUR.sub("", line.rstrip()))
    return (matched[1], matched[2]) if matched else ("", line)


def _ends_with_frames(above: list[str]) -> bool:
    """Whether these lines end with the lines of a stack."""
    for text in reversed(above):
        if text.startswith('  File "'):
            return True
        if not text.startswith("    ") and not text.startswith("  [Previous line repeated"):
            return False
    return False


def _printed_stack(above: list[str]) -> tuple[str, str, str, tuple[str, ...], str]:
    """What an exception record has after its message, from the lines of a traceback that Python printed."""
    places, frames, own, source = [""], [], "", ""
    for text in above:
        if matched := FRAME.fullmatch(text):
            path, line, function = matched.groups()
            file = path.rpartition("/")[2]
            places, source = [*places, f"{file}:{line} in {function}"], ""
            frames.append(f"{file}:{function}")
            own = own if LIBRARY.search(path) else places[-1]
        elif text.startswith("    ") and not source:
            source = text.strip()
        elif text.startswith("Traceback "):  # the lines before it belong to other exceptions
            places, frames, own, source = [""], [], "", ""
    return "", places[-1], own, tuple(frames[-KEPT_FRAMES:]), source


def _bases(name: str) -> tuple[str, ...]:
    """The base classes of a built-in exception; of others only the name is known."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return tuple(base.__name__ for base in kind.__mro__ if base is not object)
    return (name, "Exception")


IN_USE: Final = re.compile(r"EADDRINUSE|(?i:address (is )?already in use)")


def is_port_taken(cause: Traceback | None, port: int) -> bool:
    """True only if an exception of rank 0 itself says so, and names this port: torch's store and the sockets of Python
    do.  Another port is a matter of the program."""
    if cause is None or cause.rank != 0 or not port:
        return False
    texts = [f"{thrown.message} {thrown.more}" for thrown in cause.chain]
    return any(IN_USE.search(text) and re.search(rf"(?<!\d){port}(?!\d)", text) for text in texts)


# --- the stack of a process that a signal ended, as faulthandler writes it --------------------------------------------


FATAL: Final = "Fatal Python error: "
CRASH_FRAMES: Final = 24
FRAME_LENGTH: Final = 120  # characters


def parsed_crash(text: str) -> CrashStack | None:
    """The last one in the text; None where there is none, or no frame of the thread that crashed."""
    _, begin, rest = text.rpartition(FATAL)
    if not begin:
        return None
    error, _, threads = rest.partition("\n")
    own = threads.partition("Current thread ")[2].partition("\n\n")[0].split("\n")
    found = [match for line in own if (match := FRAME.fullmatch(line))]
    if not found:
        return None
    frames = tuple(_crash_frame(match) for match in found)
    program = (frame for frame, match in zip(frames, found, strict=True) if not LIBRARY.search(match[1]))
    return CrashStack(short(printable(error), FRAME_LENGTH), frames[:CRASH_FRAMES], next(program, frames[0]))


def _crash_frame(match: re.Match[str]) -> str:
    path, line, function = match.groups()
    return short(printable(f"{path.rpartition('/')[2]}:{line} in {function}"), FRAME_LENGTH)
