"""What imports in a standby have printed: it appears where the started program imports the same.

A program that is executed prints such a line when it first imports the module.  In a standby the module is there
already, so its import would be silent; therefore it and what was imported after it are taken out of `sys.modules` until
one of them is imported (`sitecustomize` passes that import to `show`).  A warning is filtered again then, by the
filters that the program has set by that time.

A standby loads this file without making a module of it (`_parked.py`).
"""

from __future__ import annotations

import os
import sys
from typing import Any

LIMIT = 1 << 16  # bytes that are kept


class KeptLines:
    """`files`: where the standard streams 1 and 2 lead while the standby imports."""

    def __init__(self) -> None:
        self.files = {number: os.memfd_create("printed") for number in (1, 2)}
        self.read = {1: 0, 2: 0}  # bytes
        self.kept: list[tuple[str, Any]] = []  # what `_show` shows, in order
        self.place = ""  # the first module whose import has printed
        self.hidden: dict[str, Any] = {}
        self.warnings: Any = None

    # --- while the standby imports --------------------------------------------------------------------------------

    def watch_warnings(self) -> None:
        """From now on, if `warnings` has been imported: keep warnings themselves, and not their text."""
        module: Any = sys.modules.get("warnings")
        if self.warnings is not None or not hasattr(module, "_showwarnmsg"):
            return
        self.warnings, self.real = module, module._showwarnmsg
        real, shown, kept = self.real, (module.showwarning, module._showwarnmsg_impl), self._take

        def keep(message: Any) -> None:
            if (module.showwarning, module._showwarnmsg_impl) != shown:
                real(message)  # an import records or prints its warnings itself
                return
            kept()
            self.kept.append(("warning", message))

        module._showwarnmsg = keep

    def imported(self, first: int) -> None:
        """An import is done; before it there were `first` modules."""
        self._take()
        if self.kept and not self.place:
            names = list(sys.modules)
            self.place = names[first] if first < len(names) else names[-1]
        self.watch_warnings()

    def end(self) -> None:
        if self.warnings is not None:
            self.warnings._showwarnmsg = self.real

    def _take(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for number, file in self.files.items():
            if text := os.pread(file, LIMIT, self.read[number]):
                self.read[number] += len(text)
                self.kept.append(("stdout" if number == 1 else "stderr", text.decode("utf-8", "replace")))

    def unread(self) -> str:
        """What was printed when no import was under way, or beyond the limit."""
        before = len(self.kept)
        self._take()
        size = sum(self.read.values())
        return "much" if size > LIMIT else "".join(text for _, text in self.kept[before:])[:200].strip()

    # --- in the program -------------------------------------------------------------------------------------------

    def hide(self) -> None:
        names = list(sys.modules)
        late = names[names.index(self.place) :]
        self.hidden = {name: sys.modules.pop(name) for name in late if sys.modules[name] is not None}

    def show(self, name: str) -> Any:
        """This module, which it returns, is imported: print."""
        module, hidden = self.hidden.pop(name), self.hidden
        self.hidden = {}
        sys.modules.update(hidden)  # without this one: importlib would take the spec that it had
        for stream_name, kept in self.kept:
            if stream_name == "warning":
                self._warn(kept, {**sys.modules, name: module})  # raises it, where the program has made an error of it
            elif (stream := getattr(sys, stream_name)) is not None:
                try:
                    stream.write(kept)
                except Exception:
                    pass
        return module

    def _warn(self, kept: Any, modules: dict[str, Any]) -> None:
        files = ((name, getattr(module, "__file__", None)) for name, module in modules.items())
        module = next((name for name, file in files if file == kept.filename), kept.filename)
        self.warnings.warn_explicit(kept.message, kept.category, kept.filename, kept.lineno, module, source=kept.source)

    def close(self) -> None:
        for file in self.files.values():
            os.close(file)
