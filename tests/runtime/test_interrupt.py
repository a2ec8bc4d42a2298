"""Ctrl-C while Ray starts: it waits for the end of the start, whatever threads there are."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import ray

from raysum.runtime.local import delayed_signals
from raysum.runtime.processes import interruptible


@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupt_waits_for_the_end_and_what_starts_meanwhile_never_sees_it(threads):
    stopped, ended = threading.Event(), False
    others = [threading.Thread(target=stopped.wait) for _ in range(threads)]  # the signal may go to any of them
    for one in others:
        one.start()
    masks = "import re; print(re.search('SigBlk:\\t(.*)', open('/proc/self/status').read())[1])"
    with pytest.raises(KeyboardInterrupt), delayed_signals():
        os.kill(os.getpid(), signal.SIGINT)
        blocked = int(subprocess.run([sys.executable, "-c", masks], capture_output=True, check=True).stdout, 16)
        time.sleep(0.1)
        ended = True
    stopped.set()
    assert ended and blocked >> (signal.SIGINT - 1) & 1
    with delayed_signals():  # and without one nothing happens
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_so_does_sigterm_whatever_handler_ray_puts_meanwhile(capsys):
    def terminate(*_: object) -> None:
        raise KeyboardInterrupt

    before, ended = signal.signal(signal.SIGTERM, terminate), False
    try:
        with pytest.raises(KeyboardInterrupt), delayed_signals():
            ray._private.utils.set_sigterm_handler(lambda *_: sys.exit(15))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
            ended = True
        assert ended and signal.getsignal(signal.SIGTERM) is terminate
        assert capsys.readouterr().err == "stopping, as soon as Ray has started\n"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_interrupt_ends_the_wait_for_code_that_hears_none():
    with pytest.raises(ValueError, match="its own"):
        interruptible(lambda: int("its own"))
    began, process = time.monotonic(), os.getpid()
    threading.Timer(0.2, os.kill, (process, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(threading.Event().wait, 30)
    assert time.monotonic() - began < 10
