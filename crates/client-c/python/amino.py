"""Transactions for programs that run under `amino run`.

    import amino

    with amino.transaction():
        ...                        # commits at the end, aborts on an exception

    amino.retry(3, work, argument) # work(argument) in a transaction, again after conflicts

Each thread has a stack of transactions; the innermost is the current one. begin(), commit(), abort(), status(), suspend(),
resume(), attach() and detach() are the calls of libamino; amino.h documents them and their errors. Outside of
`amino run` each raises NotUnderAmino.

The library is the file $AMINO_LIBRARY, else libamino.so.0 beside this module, else the system's.
"""

import ctypes
import errno
import json
import os
import random
import time

__all__ = [
    "Error", "NotUnderAmino", "Transaction", "abort", "attach", "begin", "commit", "detach", "resume", "retry", "status",
    "suspend", "transaction",
]

_SONAME = "libamino.so.0"
_ID_SIZE = 33
_STATUS_SIZE = 4096
_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.64
_CONFLICTS = (errno.EDEADLK, errno.ETIMEDOUT)


class Error(OSError):
    """A call failed; `errno` says how, `strerror` in words."""


class NotUnderAmino(Error):
    """No monitor answers: the program was not started by `amino run`."""


def _load():
    path = os.environ.get("AMINO_LIBRARY")
    if not path:
        beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), _SONAME)
        path = beside if os.path.exists(beside) else _SONAME
    library = ctypes.CDLL(path)
    library.amino_strerror.restype = ctypes.c_char_p
    library.amino_status.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    for name in ("begin", "suspend", "resume", "attach"):
        getattr(library, "amino_" + name).argtypes = [ctypes.c_char_p]
    return library


_library = _load()


def _error(code):
    kind = NotUnderAmino if -code == errno.ENOSYS else Error
    return kind(-code, _library.amino_strerror(code).decode())


def _check(code):
    if code < 0:
        raise _error(code)
    return code


def _with_room(function):
    room = ctypes.create_string_buffer(_ID_SIZE)
    _check(function(room))
    return room.value.decode()


def begin():
    """Begins a transaction, nested when there is a current one; its identifier."""
    return _with_room(_library.amino_begin)


def commit():
    """Commits the current transaction."""
    _check(_library.amino_commit())


def abort():
    """Aborts the current transaction, with those nested in it."""
    _check(_library.amino_abort())


def status():
    """The transactions of this thread: {"current": [{"id": ..., "conflicts": ..., ...}, ...], "suspended": [id, ...]}."""
    size = _STATUS_SIZE
    while True:
        room = ctypes.create_string_buffer(size)
        length = _check(_library.amino_status(room, size))
        if length < size:
            return json.loads(room.value)
        size = length + _STATUS_SIZE


def suspend():
    """Sets the current transaction, with those around it, aside; its identifier."""
    return _with_room(_library.amino_suspend)


def resume(id):
    """Makes a suspended transaction the current one again."""
    _check(_library.amino_resume(id.encode()))


def attach(id):
    """Joins a transaction of another process of the same user."""
    _check(_library.amino_attach(id.encode()))


def detach():
    """Leaves the current transaction, and those around it, without ending them."""
    _check(_library.amino_detach())


class Transaction:
    """A context: begins, commits when it is left, aborts when it is left by an exception. `id` is its identifier."""

    def __init__(self):
        self.id = None
        self.conflict = False

    def __enter__(self):
        self.id = begin()
        return self

    def __exit__(self, kind, exception, traceback):
        if kind is not None:
            self._end()
            return
        try:
            levels = self._levels()
            if len(levels) > 1:
                # Committing that one instead would lose this one silently.
                raise Error(errno.EBUSY, "a transaction that was begun inside this one has not ended")
            if not levels:
                raise _error(-errno.ENODATA)
            commit()
        except BaseException as failure:
            self.conflict = isinstance(failure, Error) and failure.errno in _CONFLICTS
            self._end()
            raise

    def _levels(self):
        """This transaction and those nested in it; empty when it has ended."""
        current = status()["current"]
        at = next((at for at, level in enumerate(current) if level["id"] == self.id), len(current))
        return current[at:]

    def _end(self):
        levels = self._levels()
        self.conflict = self.conflict or any(level["conflicts"] > 0 for level in levels)
        for _ in levels:
            abort()


def transaction():
    """with transaction(): commits at the end of the block, aborts on an exception, which goes on."""
    return Transaction()


def retry(retries, work, *args, **kwargs):
    """Calls work(*args, **kwargs) in a transaction; its value. When it, or the commit, fails because of others' locks, the
    transaction is aborted and all is done again, up to `retries` times, after a short random pause."""
    pause = _PAUSE_S
    while True:
        context = Transaction()
        try:
            with context:
                value = work(*args, **kwargs)
            return value
        except Exception as failure:
            begun = context.id is not None
            conflict = context.conflict if begun else getattr(failure, "errno", None) in _CONFLICTS
            if retries <= 0 or not conflict:
                raise
        retries -= 1
        time.sleep(random.uniform(0, pause))
        pause = min(pause * 2, _PAUSE_MAX_S)
