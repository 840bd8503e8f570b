"""Whoever starts the tests in the background has a shell that ignores Ctrl-C for them, and for all that they start."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
