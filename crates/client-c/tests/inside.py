"""Each call under the stand-in for the monitor, whose first two transactions meet a conflict."""

import errno

import amino


def fails(number, call, *args):
    try:
        call(*args)
    except amino.Error as error:
        assert error.errno == number, error
    else:
        raise AssertionError(call)


def depth():
    return len(amino.status()["current"])


tries = []


def work(value):
    tries.append(depth())
    if len(tries) < 3:
        raise OSError(errno.EDEADLK, "met a lock")
    return value


assert amino.retry(5, work, "done") == "done"
assert tries == [1, 1, 1] and depth() == 0


def broken():
    tries.append(depth())
    raise KeyError("not a conflict")


try:
    amino.retry(5, broken)
except KeyError:
    assert len(tries) == 4 and depth() == 0
else:
    raise AssertionError("retry")

with amino.transaction() as outer:
    try:
        with amino.transaction() as inner:
            assert [level["id"] for level in amino.status()["current"]] == [outer.id, inner.id]
            amino.begin()
            raise KeyError("aborts what it left open, too")
    except KeyError:
        pass
    assert depth() == 1
assert depth() == 0


def leaves_one_open():
    with amino.transaction():
        amino.begin()


fails(errno.EBUSY, leaves_one_open)
assert depth() == 0


def ends_it_itself():
    with amino.transaction():
        amino.abort()


fails(errno.ENODATA, ends_it_itself)
fails(errno.ENODATA, amino.commit)

for _ in range(40):
    amino.begin()
assert depth() == 40
aside = amino.suspend()
assert amino.status() == {"current": [], "suspended": [aside]}
amino.resume(aside)
fails(errno.EBUSY, amino.resume, aside)
fails(errno.EBUSY, amino.attach, aside)
amino.detach()
assert depth() == 0
