"""Which of many tracebacks is the first cause, and what a restart can cure."""

import importlib
import importlib.util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.machine.values import LocalRank, Rank
from ftrun.core.rules import crash_causes, first_death
from ftrun.core.rules.crash_causes import (
    RULES,
    CommandFailure,
    CrashRule,
    ExceptionRecord,
    Traceback,
    diagnose,
    first_cause,
    last_printed,
)
from ftrun.core.text import sentences

ELASTIC = "torch.distributed.elastic.multiprocessing"


def thrown(line: str, *bases: str, more: str = "", own: str = "") -> ExceptionRecord:
    """As Python prints it, and the classes below its own."""
    name, _, message = line.partition(": ")
    known = crash_causes._bases(name)
    return ExceptionRecord((name, *bases, *known[1:]), message, more, "", own)


def died(
    pid: int, line: str, *bases: str, at: float = 100.0, started: float = 1.0, parent: int = 1, rank: int | None = None
) -> Traceback:
    parents = {1: (1,), 10: (10, 1), 20: (20, 10, 1)}[parent]
    return Traceback(pid, thrown(line, *bases), parents, started, at, rank, "train.py" if parent > 1 else f"{pid}.py")


AGENT = died(10, f"{ELASTIC}.errors.ChildFailedError: train.py FAILED", at=120.0)
BAD = died(13, "ValueError: bad batch", at=100.0, started=50.0, parent=10, rank=3)
RESET = died(11, "RuntimeError: [1]:5: Connection closed by peer", at=100.5, started=50.0, parent=10, rank=1)

# --- the first cause --------------------------------------------------------------------------------------------------

# Those that were left, and which of them is the first cause.
STORIES: dict[str, tuple[list[Traceback], int | None]] = {
    "nobody": ([], None),
    "one": ([BAD], 0),
    "one that is a symptom": ([RESET], 0),
    "a rank, then its peer, then the launcher": ([BAD, RESET, AGENT], 0),
    "the same where the launcher left no traceback": ([BAD, RESET], 0),
    "an exception of the peer that is no known symptom": (
        [BAD, RESET._replace(thrown=thrown("RuntimeError: strange"))],
        0,
    ),
    "the symptom came first": ([RESET._replace(at=99.0), BAD, AGENT], 1),
    "only symptoms: the first of the ranks": ([RESET, RESET._replace(pid=12, rank=2, at=101.0), AGENT], 0),
    "an attempt of the launcher before": (
        [died(31, "ImportError: no", at=40.0, started=2.0, parent=10, rank=3), BAD, RESET, AGENT],
        1,
    ),
    "what was tried and ended before": ([died(5, "ImportError: flash_attn", at=0.5, started=0.1), AGENT], 1),
    "just before, with a clock that ticks": (
        [died(5, "ImportError: x", at=2.0, parent=10), died(6, "KeyError: 1", at=9.0, started=1.995, parent=10)],
        1,
    ),
    "another program beside it": ([died(5, "ImportError: tensorboard"), died(6, "OSError: disk", at=101.0)], 1),
    "a child that it let fail": ([died(21, "ImportError: x", parent=20), died(20, "OSError: disk", at=101.0)], 1),
    "a worker's worker": (
        [
            died(21, "MemoryError", at=90.0, started=60.0, parent=20, rank=0),
            died(20, "RuntimeError: DataLoader worker (pid(s) 21) exited unexpectedly", at=91.0, parent=10, rank=0),
            RESET,
            AGENT,
        ],
        0,
    ),
    "raised from a symptom": (
        [BAD, AGENT._replace(thrown=thrown("RuntimeError: failed"), root=AGENT.thrown, explicit_cause=True)],
        0,
    ),
    "started when nobody knows": ([BAD, RESET._replace(started=0.0)], 0),
    "a circle of parents": ([AGENT._replace(parents=(13,)), BAD._replace(parents=(10,), thrown=AGENT.thrown)], 1),
    "shows one, goes on, dies of another": ([BAD._replace(thrown=thrown("KeyError: 1"), at=60.0), BAD], 1),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_the_first_cause(story: tuple[list[Traceback], int | None]) -> None:
    found, first = story
    for order in (found, found[::-1]):
        assert first_cause(order) == (None if first is None else found[first])


def test_a_traceback_from_long_before_the_end_is_ignored() -> None:
    assert first_cause([BAD], ended=BAD.at + 100) == BAD
    assert first_cause([BAD], ended=BAD.at + 1000) is None


NAMES = st.sampled_from(
    [
        "ValueError",
        "ImportError",
        "ConnectionResetError",
        f"{ELASTIC}.errors.ChildFailedError",
        "subprocess.CalledProcessError",
        "",
    ]
)
PIDS = st.integers(1, 6)
TRACEBACKS = st.builds(
    Traceback,
    PIDS,
    st.builds(
        ExceptionRecord, st.tuples(NAMES, st.just("Exception")), st.sampled_from(["", "Connection closed by peer", "x"])
    ),
    parents=st.lists(PIDS, max_size=3).map(tuple),
    started=st.sampled_from([0.0, 1.0, 2.0, 3.0, float("inf")]),
    at=st.sampled_from([0.0, 1.5, 2.5, 3.5]),
    rank=st.none() | st.integers(0, 2),
    program=st.sampled_from(["", "-c", "train.py"]),
)


@settings(max_examples=40)
@given(st.lists(TRACEBACKS, max_size=9), st.randoms())
def test_any_tracebacks_have_one_cause_in_any_order(found: list[Traceback], chance: object) -> None:
    cause = first_cause(found)
    assert (cause is None) == (not found)
    assert cause is None or cause in found
    mixed = found[:]
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    assert first_cause(mixed) == cause


SYMPTOMS = [
    AGENT.thrown,
    thrown(f"{ELASTIC}.api.SignalException: Process 7 got signal: 15"),
    thrown("torch.multiprocessing.spawn.ProcessExitedException: x", "torch.multiprocessing.spawn.ProcessException"),
    thrown("subprocess.CalledProcessError: Command returned 1"),
    thrown("concurrent.futures.process.BrokenProcessPool: x", "concurrent.futures._base.BrokenExecutor"),
    thrown("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. "),
    thrown("RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly"),
    thrown("torch.distributed.DistBackendError: NCCL error in: x.cpp", "torch.distributed.DistError", "RuntimeError"),
    thrown("BrokenPipeError: [Errno 32] Broken pipe"),
    thrown("EOFError"),
    thrown("RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5"),
    thrown("RuntimeError: Connection reset by peer"),
    thrown("RuntimeError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL"),
    thrown("RuntimeError: NCCL communicator was aborted on rank 1"),
    thrown("RuntimeError: EI0002: [PID: 7] notify wait timed out"),
    thrown("ImportError: sys.meta_path is None, Python is likely shutting down"),
    thrown("RuntimeError: cannot schedule new futures after shutdown"),
]
NO_SYMPTOMS = [
    thrown("ValueError: bad batch"),
    thrown("EOFError: Ran out of input"),
    thrown("RuntimeError: CUDA error: an illegal memory access was encountered"),
    thrown("TimeoutError: the loss did not fall"),
    thrown("AssertionError"),
]


@pytest.mark.parametrize("line", SYMPTOMS, ids=lambda t: t.line[:40])
def test_a_symptom_is_recognised(line: ExceptionRecord) -> None:
    assert crash_causes.is_symptom((line,))


@pytest.mark.parametrize("line", NO_SYMPTOMS, ids=lambda t: t.line[:40])
def test_a_cause_is_no_symptom(line: ExceptionRecord) -> None:
    assert not crash_causes.is_symptom((line,))


# --- the judgement ----------------------------------------------------------------------------------------------------


def reading(line: str, *frames: str, own: str = "", source: str = "") -> CommandFailure:
    """Raised in the last of these frames; `own`: the last of the program, if it is another one."""
    file, _, function = frames[-1].partition(":")
    where = f"{file}:3 in {function}"
    raised = thrown(line)._replace(frames=frames, where=where, own=own or where, source=source)
    return CommandFailure(1, cause=Traceback(7, raised))


def by(
    line: str, *bases: str, more: str = "", root: ExceptionRecord | None = None, explicit_cause: bool = True
) -> CommandFailure:
    cause = Traceback(7, thrown(line, *bases, more=more), root=root, explicit_cause=explicit_cause)
    return CommandFailure(1, cause=cause)


TRACE = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    assert loss > 0")
INDUCTOR = ("torch._dynamo.exc.BackendCompilerFailed", "torch._dynamo.exc.TorchDynamoException", "RuntimeError")
XLA = "jaxlib.xla_extension.XlaRuntimeError"
CHILD = by(f"{ELASTIC}.errors.ChildFailedError: train.py FAILED")

# Each rule in the order of the table: what it holds for, what looks like it and is another's.
Example = CommandFailure | str  # a text: of the exception
EXAMPLES: list[tuple[str, list[Example], list[Example]]] = [
    (
        "kernel-memory",
        [
            CommandFailure(signal=9, oom_kills=2),
            CommandFailure(137, oom_kills=1),
            CommandFailure(1, oom_kills=1),
            CHILD._replace(oom_kills=1),
        ],
        [CommandFailure(signal=9, oom_kills=0), by("ValueError: x")._replace(oom_kills=1), CommandFailure(signal=9)],
    ),
    ("memory", [by("torch.OutOfMemoryError: CUDA out of memory", "RuntimeError"), "MemoryError"], ["OSError: x"]),
    (
        "memory",
        ["RuntimeError: NPU out of memory. Tried to allocate", "torch.AcceleratorError: CUDA error: out of memory"],
        ["RuntimeError: out of range", "ValueError: out of memory"],
    ),
    ("memory", [f"{XLA}: RESOURCE_EXHAUSTED: Out of memory"], [f"{XLA}: INTERNAL: RESOURCE_EXHAUSTED"]),
    (
        "machine",
        ["ImportError: [Errno 116] Stale file handle: 'x.py'", "OSError: [Errno 28] No space left on device"],
        ["ImportError: libgomp.so.1: cannot allocate memory in static TLS block", "ValueError: no space left"],
    ),
    (
        "machine",
        [
            by("RuntimeError: Error building extension 'fused_adam'", more="c++: fatal error: Killed signal"),
            by("RuntimeError: Error building extension 'fused_adam'", more="[1/2] nvcc: No space left on device"),
        ],
        ["RuntimeError: Error building extension 'fused_adam'", "RuntimeError: Killed"],
    ),
    (
        "machine",
        [
            CommandFailure(
                1, tail=("c++: fatal error: Killed signal terminated program cc1plus", "ninja: build stopped: x.")
            ),
            CommandFailure(2, tail=("train.sh: 7: Cannot fork",)),
        ],
        [CommandFailure(1, tail=("step 3: Killed",)), CommandFailure(1, tail=("ninja: build stopped: x.",))],
    ),
    (
        "machine",
        [by("torch._inductor.exc.InductorError: OSError", *INDUCTOR, root=thrown("FileNotFoundError: tmp"))],
        [
            by(
                "torch._inductor.exc.InductorError: OSError",
                *INDUCTOR,
                root=thrown("FileNotFoundError: x"),
                explicit_cause=False,
            ),
            by("ImportError: x", root=thrown("OSError: libx.so: cannot open shared object file")),
        ],
    ),
    (
        "machine",
        [
            by(
                "requests.exceptions.JSONDecodeError: Extra data: line 1 column 5 (char 4)",
                *("requests.exceptions.RequestException", "OSError", "json.decoder.JSONDecodeError", "ValueError"),
            )
        ],
        [by("json.decoder.JSONDecodeError: Extra data: line 1 column 5 (char 4)", "ValueError")],
    ),
    ("shutdown", ["ImportError: sys.meta_path is None, Python is likely shutting down"], ["ImportError: None"]),
    (
        "syntax",
        ["IndentationError: unexpected indent", by("RuntimeError: config", root=thrown("SyntaxError: bad"))],
        ["ValueError: SyntaxError", by("RuntimeError: x", root=thrown("SyntaxError: bad"), explicit_cause=False)],
    ),
    (
        "import",
        ["ModuleNotFoundError: No module named 'flash_attn'"],
        [by("ValueError: bad", root=thrown("ImportError: flash_attn"), explicit_cause=False)],
    ),
    (
        "compile",
        [
            by("torch._inductor.exc.InductorError: LoweringException: x", *INDUCTOR),
            by("torch._dynamo.exc.Unsupported: graph break", "torch._dynamo.exc.TorchDynamoException", "RuntimeError"),
            by("triton.compiler.errors.CompilationError: at 3:8", "triton.errors.TritonError"),
            by("torch.jit.frontend.UnsupportedNodeError: x", "torch.jit.frontend.FrontendError"),
            "__main__.CompilationError: no kernel for this shape",
        ],
        ["torch.jit.Error: x", "tritonclient.utils.InferenceServerException: x"],
    ),
    (
        "compile",
        [f"{XLA}: UNIMPLEMENTED: no such op", f"{XLA}: INTERNAL: ptxas exited with non-zero error code 255"],
        [
            f"{XLA}: INTERNAL: Core halted unexpectedly: no compiler metadata was provided",
            f"{XLA}: UNAVAILABLE: connection lost",
        ],
    ),
    (
        "compile",
        [
            "RuntimeError: Error building extension 'fused_adam'",
            by(
                "RuntimeError: The Inner error is reported as above.",
                more="E40021: Failed to compile Op [trans_Cast_2,]",
            ),
        ],
        ["RuntimeError: E99999: Inner Error!", "ValueError: Error building extension"],
    ),
    (
        "compile",
        [
            "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
            by("RuntimeError: the kernels do not compile", more="nvcc fatal   : Unsupported gpu architecture"),
        ],
        [
            "subprocess.CalledProcessError: Command '['ninja', '-v']' died with <Signals.SIGKILL: 9>.",
            "subprocess.CalledProcessError: Command '['rsync']' returned non-zero exit status 1.",
        ],
    ),
    (
        "compile",
        [
            CommandFailure(1, tail=("nvcc fatal   : Unsupported gpu architecture 'compute_120'", "make: Error 1")),
            CommandFailure(2, tail=("ninja: build stopped: subcommand failed.",), beaten=True),
        ],
        [
            CommandFailure(1, tail=("ninja: build stopped: interrupted by user.", *["step"] * 12)),
            by("ValueError: x")._replace(tail=("nvcc fatal   : x",)),
        ],
    ),
    ("assertion", ["AssertionError", by("AssertionError: x")._replace(beaten=True)], ["RuntimeError: AssertionError"]),
    (
        "configuration",
        [
            by("omegaconf.errors.MissingMandatoryValue: x", "omegaconf.errors.OmegaConfBaseException"),
            by("pydantic_core._pydantic_core.ValidationError: 1 validation error for Config", "ValueError"),
            "train.errors.ConfigError: lr is negative",
            "train.errors.BadConfigurationError: lr is negative",
            CommandFailure(1, tail=(*TRACE, "yaml.scanner.ScannerError: mapping values are not allowed here")),
            CommandFailure(1, tail=(*TRACE, "tomllib.TOMLDecodeError: Invalid value (at line 1, column 6)")),
        ],
        [by("yaml.scanner.ScannerError: x", "yaml.error.YAMLError")._replace(beaten=True), "ValueError: --lr"],
    ),
    (
        "configuration",
        [by("json.decoder.JSONDecodeError: Expecting ',' delimiter: line 3 column 2 (char 40)", "ValueError")],
        [
            by("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "ValueError"),
            by("json.decoder.JSONDecodeError: Extra data: line 1 column 5 (char 4)")._replace(beaten=True),
        ],
    ),
    (
        "configuration",
        [
            by(f"FileNotFoundError: [Errno 2] No such file or directory: '{name}'")
            for name in ("conf/train.yaml", "run.toml", "/job/model_config.json")
        ],
        [
            by(f"FileNotFoundError: [Errno 2] No such file or directory: '{name}'")
            for name in ("data/train.json", "part-3.bin", "/out/checkpoint-500/config.json", "/data/config/x.bin")
        ],
    ),
    (
        "configuration",
        [
            "TypeError: TrainConfig.__init__() got an unexpected keyword argument 'learning_rat'",
            "TypeError: Settings.__init__() missing 1 required positional argument: 'lr'",
        ],
        ["TypeError: Batch.__init__() got an unexpected keyword argument 'x'", "TypeError: f() missing 1"],
    ),
    (
        "configuration",
        [
            reading("ValueError: lr must be positive", "train.py:<module>", "train.py:main", "util.py:load_config"),
            reading(
                "ValueError: bad date", "train.py:load_config", "constructor.py:construct", own="train.py:3 in main"
            ),
            reading("KeyError: 'lr'", "train.py:<module>", "train_config.py:__post_init__"),
            reading("TypeError: x", "train.py:<module>", "train.py:from_yaml"),
            reading("FileNotFoundError: [Errno 2] No such file: 'run'", "train.py:main", "train.py:read_settings"),
            reading("KeyError: 'lr'", "train.py:<module>", source='lr = config["lr"]'),
            reading("ValueError: could not convert string to float: 'x'", "t.py:main", source="f = float(args.cfg.lr)"),
            reading("ValueError: x", "t.py:main", source="f = float(cfg.lr)"),
            CommandFailure(1, tail=(*TRACE[:1], '  File "t.py", line 3, in parse_args', "    x", "ValueError: --lr")),
        ],
        [
            reading("KeyError: 'lr'", "train.py:load_config")._replace(beaten=True),
            reading("KeyError: 'x'", "train.py:<module>", "train.py:main", source='x = batch["x"]'),
            reading("KeyError: 'x'", "train.py:main", "lib.py:get", own="train.py:9 in main", source='config["x"]'),
            reading("ValueError: x", "train.py:load_model_and_config"),
            reading("ValueError: x", "config.py:<module>", "config.py:step"),
            reading("ValueError: x", "train.py:<module>", "run_config.py:main"),
            reading("TimeoutError: x", "train.py:load_config"),
            reading("RuntimeError: CUDA error", "train.py:load_config"),
            CommandFailure(1, tail=(*TRACE, "ValueError: x")),
        ],
    ),
    (
        "usage",
        [CommandFailure(2)],
        [
            *(CommandFailure(2, beaten=True), CommandFailure(2, accepted=True)),
            *(CommandFailure(1), CommandFailure(signal=2)),
        ],
    ),
    ("command", [CommandFailure(127), CommandFailure(126)], [CommandFailure(127, beaten=True), CommandFailure(125)]),
    (
        "import",
        [CommandFailure(127, tail=("./train: error while loading shared libraries: libnccl.so.2: x",), beaten=True)],
        [CommandFailure(1, tail=("./train: error while loading shared libraries: libnccl.so.2: x",))],
    ),
    (
        "import",
        [CommandFailure(1, tail=("/usr/bin/python3.11: No module named train",))],
        [CommandFailure(1, tail=("step 3: No module named train",))],
    ),
    (
        "assertion",
        [CommandFailure(signal=6, tail=("train: step.c:9: step: Assertion `loss > 0' failed.",))],
        [CommandFailure(1, tail=("train: step.c:9: step: Assertion `loss > 0' failed.",)), CommandFailure(signal=6)],
    ),
    (
        "killed",
        [CommandFailure(signal=9), CommandFailure(137), CommandFailure(247)],
        [CommandFailure(signal=15), CommandFailure(1)],
    ),
]


def test_every_rule_has_its_examples() -> None:
    assert [name for name, _, _ in EXAMPLES] == [rule.name for rule in RULES]


@pytest.mark.parametrize(("rule", "example"), list(zip(RULES, EXAMPLES, strict=True)), ids=lambda x: x[0])
def test_a_rule_applies_only_to_its_examples(
    rule: CrashRule, example: tuple[str, list[Example], list[Example]]
) -> None:
    def applied(ending: CommandFailure) -> CrashRule | None:
        chain = crash_causes.diagnose_chain(ending)
        return next((one for one in RULES if crash_causes._applies(one, ending, chain)), None)

    those, others = ([by(one) if isinstance(one, str) else one for one in given] for given in example[1:])
    for ending in those:
        found = diagnose(ending)
        assert (found.rule, found.recoverable) == (rule.name, rule.recoverable), ending
        assert rule.why.split("{", maxsplit=1)[0] in found.why
        assert applied(ending) is rule
    for ending in others:
        assert applied(ending) is not rule, ending


def test_the_reason_names_rank_exception_place_and_origin() -> None:
    cause = BAD._replace(thrown=thrown("ValueError: bad batch", own="train.py:88 in step"))
    assert diagnose(CommandFailure(1, cause=cause)) == (
        True,
        "rank 3: ValueError: bad batch (train.py:88 in step)",
        "unknown",
        "ValueError: bad batch",
    )
    cause = cause._replace(root=thrown("AssertionError", own="data.py:3 in read"), explicit_cause=True)
    assert diagnose(CommandFailure(1, cause=cause)).why == (
        "rank 3: ValueError: bad batch (train.py:88 in step), from AssertionError (data.py:3 in read); "
        "a failed assertion fails again"
    )
    assert diagnose(CommandFailure(signal=9, oom_kills=2)).why == (
        "signal 9 (SIGKILL) ended the command; the kernel killed 2 of its processes for lack of memory"
    )
    assert diagnose(CommandFailure(5)) == (True, "the command exited with 5", "unknown", None)


def test_a_traceback_that_does_not_explain_the_end_decides_nothing() -> None:
    probe = Traceback(7, thrown("ImportError: flash_attn"), program="-c")
    assert diagnose(CommandFailure(1, cause=probe)).recoverable
    assert not diagnose(CommandFailure(1, cause=probe, pid=7)).recoverable  # it was the command
    crash = probe._replace(program="train.py")
    found = diagnose(CommandFailure(signal=11, cause=crash))
    assert found.recoverable
    assert found.why == "signal 11 (SIGSEGV) ended the command; before that, ImportError: flash_attn"
    assert not diagnose(CommandFailure(signal=6, cause=crash, pid=7)).recoverable  # it crashed on its way out
    assert diagnose(CommandFailure(2, cause=crash)).rule == "usage"


TAILS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "nothing": ((), None),
    "at the end": ((*TRACE, "AssertionError: loss"), "AssertionError: loss"),
    "with marks below": ((*TRACE, "           ^^^^^^^^", "AssertionError"), "AssertionError"),
    "in colour": ((*TRACE, "\x1b[1;35mAssertionError\x1b[0m: \x1b[35mloss\x1b[0m"), "AssertionError: loss"),
    "of a rank": (tuple(f"[rank1]: {line}" for line in (*TRACE, "AssertionError")), "AssertionError"),
    "of a rank by torchrun": (tuple(f"[default1]:{line}" for line in (*TRACE, "AssertionError")), "AssertionError"),
    "of both": (tuple(f"[trainer1]:[rank1]: {line}" for line in (*TRACE, "AssertionError")), "AssertionError"),
    "between another's lines": (
        (*(line for own in TRACE for line in (f"[rank1]: {own}", "[rank0]: step 3")), "[rank1]: AssertionError"),
        "AssertionError",
    ),
    "of a script that is none": (
        ('  File "t.py", line 2', "    def", "       ^", "SyntaxError: bad"),
        "SyntaxError: bad",
    ),
    "advice below": ((*TRACE, "ValueError: x", "", "Set HYDRA_FULL_ERROR=1 for all of it."), "ValueError: x"),
    "the last of two": ((*TRACE, "ImportError: a", "", "During handling:", "", *TRACE, "KeyError: 1"), "KeyError: 1"),
    "deep": ((*TRACE, "  [Previous line repeated 990 more times]", "RecursionError: deep"), "RecursionError: deep"),
    "and went on": ((*TRACE, "ImportError: a", *["step"] * 12), None),
    "no traceback": (("epoch 1", "AssertionError: not one"), None),
    "only talk of one": (("    see", "AssertionError: here"), None),
    "cut off": (TRACE, None),
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_the_exception_that_was_printed_last_is_found(tail: tuple[tuple[str, ...], str | None]) -> None:
    lines, wanted = tail
    found = last_printed(lines)
    assert (found.line if found else None) == wanted


def test_a_printed_exception_follows_the_same_rules() -> None:
    tail = (*TRACE, "ModuleNotFoundError: No module named 'apex'")
    assert diagnose(CommandFailure(1, tail=tail)) == (
        False,
        "the command exited with 1, after ModuleNotFoundError: No module named 'apex'; a restart installs nothing",
        "import",
        "ModuleNotFoundError: No module named 'apex'",
    )


# --- the names --------------------------------------------------------------------------------------------------------

ACTUAL = {
    "torch._inductor.exc:InductorError": "compile",
    "torch._inductor.exc:CppCompileError": "compile",
    "torch._dynamo.exc:Unsupported": "compile",
    "torch._dynamo.exc:FailOnRecompileLimitHit": "compile",
    "torch.jit.frontend:NotSupportedError": "compile",
    "torch.fx.experimental.symbolic_shapes:GuardOnDataDependentSymNode": "compile",
    "torch:OutOfMemoryError": "memory",
    "pydantic:ValidationError": "configuration",
    "yaml:YAMLError": "configuration",
    "tomllib:TOMLDecodeError": "configuration",
    "argparse:ArgumentError": "configuration",
    "lightning.fabric.utilities.exceptions:MisconfigurationException": "configuration",
    "pytorch_lightning.utilities.exceptions:MisconfigurationException": "configuration",
    f"{ELASTIC}.errors:ChildFailedError": "symptom",
    f"{ELASTIC}.api:SignalException": "symptom",
    "torch.multiprocessing.spawn:ProcessRaisedException": "symptom",
    "torch.distributed:DistBackendError": "symptom",
    "torch.distributed.elastic.rendezvous.api:RendezvousTimeoutError": "symptom",
    "concurrent.futures.process:BrokenProcessPool": "symptom",
    "subprocess:CalledProcessError": "symptom",
}


# Importing these takes seconds, and the process keeps them.  Only another version of a library can change a name: CI
# runs the slow ones, too.
LARGE = ("torch", "lightning", "pytorch_lightning")
OF_LIBRARIES = [
    pytest.param(name, wanted, marks=[pytest.mark.slow, pytest.mark.torch] if name.startswith(LARGE) else [])
    for name, wanted in ACTUAL.items()
]


@pytest.mark.parametrize(("name", "wanted"), OF_LIBRARIES)
def test_exceptions_of_libraries_have_the_names_in_the_rules(name: str, wanted: str) -> None:
    module, _, kind = name.partition(":")
    if importlib.util.find_spec(module.split(".")[0]) is None:
        pytest.skip(f"no {module} here")
    found = getattr(importlib.import_module(module), kind)
    kinds = tuple(
        (base.__module__ + "." if base.__module__ != "builtins" else "") + base.__qualname__
        for base in found.__mro__
        if base is not object
    )
    raised = ExceptionRecord(kinds, "x")
    if wanted == "symptom":
        assert crash_causes.is_symptom((raised,))
    else:
        assert diagnose(CommandFailure(1, cause=Traceback(7, raised))).rule == wanted


# --- a process that left no exception ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("children", "left", "first"),
    [
        ([(0, 10, 1), (1, 11, -11)], {10}, 11),
        ([(0, 10, 1), (1, 11, 3)], {10}, 11),
        ([(0, 10, 1), (1, 11, -9)], set(), 11),  # 1 may have been an exception that nobody could write down
        ([(0, 10, 3), (1, 11, -6)], set(), 11),
        ([(0, 10, 1), (1, 11, -15)], {10}, None),  # ended by the launcher
        ([(0, 10, 1), (1, 11, 0)], {10}, None),
        ([], {10}, None),
    ],
)
def test_the_child_that_died_first_is_found(
    children: list[tuple[int, int, int]], left: set[int], first: int | None
) -> None:
    found = first_death.first_death([first_death.Death(*one) for one in children], left)
    assert (found and found.pid) == first


def test_the_diagnosis_names_the_process_without_exception() -> None:
    reset = Traceback(10, ExceptionRecord(("ConnectionResetError", "ConnectionError"), "by peer"), rank=0, at=5.0)
    ending = CommandFailure(code=1, cause=reset, ended=6.0, death=first_death.Death(1, 11, -11))
    found = diagnose(ending)
    assert found.why == "rank 1: signal 11 (SIGSEGV) ended process 11, which left no exception"
    assert found.line is None, "it is not the same twice by what another process died of"
    killed = diagnose(ending._replace(death=first_death.Death(1, 11, -9)))
    assert (killed.recoverable, killed.rule) == (True, "killed")


@pytest.mark.parametrize("ranks", [[(0, 10), (1, 11), (2, 12)], [(1, 11)], []])
def test_no_rank_is_guessed_among_several_without_exception(ranks: list[tuple[int, int]]) -> None:
    assert first_death.rank_without_exception(ranks, {10}) == ""


ENDED = (LocalRank(0, 0, 10, exited_at=9.0, code=1), LocalRank(1, 1, 11, exited_at=6.0, code=0), LocalRank(2, 2, 12))


def test_the_rank_that_left_first_is_found() -> None:
    found = first_death.left_early(ENDED, [Rank(1, step=20)], 0)
    assert found == (1, 6.0, "rank 1 left with 0 at step 20 before the others; 3s later ")
    later = (ENDED[0], ENDED[1]._replace(exited_at=9.5))
    assert first_death.left_early(later, [], 0) is None, "it ended after the one that failed"
    assert first_death.left_early(ENDED, [Rank(0, done=True)], 0) is None, "that one needed no other any more"
    assert first_death.left_early(ENDED[::2], [Rank(1, done=True)], 0) is None, "ftrun has seen how they ended"


def test_under_a_launcher_a_rank_has_left_that_was_done() -> None:
    ranks = [Rank(0, step=30), Rank(1, step=20, moved_at=5.0, done=True), Rank(2, step=25, moved_at=6.0, done=True)]
    found = first_death.left_early((), ranks, 0)
    assert found == (1, None, "rank 1 left at step 20 before the others; then ")
    assert first_death.left_early((), ranks[1:], None) is None
    assert first_death.left_early((), [ranks[0], ranks[1]._replace(ranked=False)], 0) is None


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(st.text("ab ([)]", max_size=80), st.integers(20, 60))
def test_a_text_is_shortened_to_its_limit(text: str, most: int) -> None:
    found = sentences.short(text, most)
    assert len(found) <= most
    assert found == text or "..." in found


def test_no_bracket_is_cut() -> None:
    place = " (pair.cc:547 in some_function_with_a_name)"
    text = "rank 0: RuntimeError: " + "a word " * 12 + place + " and what led to it was " + "another " * 8 + place
    for most in range(90, len(text)):
        found = sentences.short(text, most)
        assert found.count("(") == found.count(")"), found
