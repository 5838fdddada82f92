"""Outside of a monitor every call says so."""

import errno

import amino

ID = "0123456789abcdef0123456789abcdef"


def work():
    raise AssertionError("no transaction protects this")


def block():
    with amino.transaction():
        work()


calls = [
    amino.begin, amino.commit, amino.abort, amino.status, amino.suspend, lambda: amino.resume(ID), lambda: amino.attach(ID),
    amino.detach, block, lambda: amino.retry(3, work),
]
for call in calls:
    try:
        call()
    except amino.NotUnderAmino as error:
        assert error.errno == errno.ENOSYS, error
        assert str(error) == "[Errno 38] not running under amino", error
        assert isinstance(error, (amino.Error, OSError))
    else:
        raise AssertionError(call)

try:
    amino.attach("short")
except amino.Error as error:
    assert error.errno == errno.EINVAL, error
else:
    raise AssertionError("attach")
