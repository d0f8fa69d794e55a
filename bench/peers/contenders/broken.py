"""Contenders that fail in every way there is, for peers_test.py."""

import os
import signal

from ..protocol import Contender, Prepared, Unable


class Broken(Prepared):
    def __init__(self, run):
        self.run = run


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def complain():
    raise ValueError("no such shape")


class Named(Contender):
    def __init__(self, name, run):
        self.name, self.call = name, run

    def prepare(self, case, tensors):
        if self.call is None:
            raise Unable("cannot")
        return Broken(self.call)


def contenders(_threads, _argument):
    return [Named("broken_idle", lambda: None), Named("broken_dies", die), Named("broken_complains", complain),
            Named("broken_unable", None)]
