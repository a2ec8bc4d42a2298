"""Ctrl-C while Ray starts: it waits for the end of the start, whatever threads there are."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from raysum.runtime.local import signals_held


@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupt_waits_for_the_end_and_what_starts_meanwhile_never_sees_it(threads):
    stopped, ended = threading.Event(), False
    others = [threading.Thread(target=stopped.wait) for _ in range(threads)]  # the signal may go to any of them
    for one in others:
        one.start()
    masks = "import re; print(re.search('SigBlk:\\t(.*)', open('/proc/self/status').read())[1])"
    with pytest.raises(KeyboardInterrupt), signals_held():
        os.kill(os.getpid(), signal.SIGINT)
        blocked = int(subprocess.run([sys.executable, "-c", masks], capture_output=True, check=True).stdout, 16)
        time.sleep(0.1)
        ended = True
    stopped.set()
    assert ended and blocked >> (signal.SIGINT - 1) & 1
    with signals_held():  # and without one nothing happens
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
