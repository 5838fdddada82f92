//! Files of a pass-through mount that others change by their paths on the host. A program that opens a file often opens it without the monitor.

use goanna_tests::{Backend, Intercept, Place, User, finish, may_become_another_user};

/// Its argument is the host's path of its working directory.
const PROGRAM: &str = "
import ctypes, errno, os, struct, sys
host, = sys.argv[1:]
def content(path, flags=os.O_RDONLY):
    fd = os.open(path, flags)
    try: return os.read(fd, 100).decode()
    finally: os.close(fd)
def often(path, expected):
    for _ in range(100):
        found = content(path)
        assert found == expected, (path, found, expected)
def put(name, text):
    with open(os.path.join(host, name), 'w') as f: f.write(text)
def missing(path):
    for _ in range(100):
        assert not os.path.lexists(path) and not os.access(path, os.R_OK)
        fails(path, errno.ENOENT)
def fails(path, error, flags=os.O_RDONLY):
    try: os.close(os.open(path, flags))
    except OSError as e: assert e.errno == error, e
    else: raise AssertionError(path)
os.mkdir('d')
put('other', 'other')
there = os.path.join(host, 'd/f')
for round in range(10):
    for path in ['d/f', os.getcwd() + '/d/f']:
        put('d/f', 'first')
        often(path, 'first')
        put('d/f', 'longer')
        often(path, 'longer')
        put('new', 'new')
        os.replace(os.path.join(host, 'new'), there)
        often(path, 'new')
        os.unlink(there)
        missing(path)
        put('d/f', 'again')
        assert os.path.getsize(path) == 5 and content(path) == 'again'
        os.unlink(there)
        missing(path)
        os.symlink('../other', there)
        assert os.path.islink(path) and os.path.getsize(path) == 5
        fails(path, errno.ELOOP, os.O_RDONLY | os.O_NOFOLLOW)
        often(path, 'other')
        os.unlink(there)
        os.mkdir(there)
        fails(path, errno.EISDIR, os.O_RDWR)
        put('d/f/in', 'inside')
        fd = os.open(path, os.O_RDONLY)
        assert os.listdir(fd) == ['in'] and content('/proc/self/fd/%d/in' % fd) == 'inside'
        os.close(fd)
        os.unlink(there + '/in')
        os.rmdir(there)
        os.mkfifo(there)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        assert os.read(fd, 1) == b''
        os.close(fd)
        os.unlink(there)
        put('d/f', 'last')
        often(path, 'last')
        os.rename(os.path.join(host, 'd'), os.path.join(host, 'e'))
        missing(path)
        os.mkdir('d')
        missing(path)
        put('d/f', 'another')
        assert content(path) == 'another'
        os.unlink('d/f')
        missing(path)
        os.rmdir('d')
        # On the host, this path leads nowhere.
        os.symlink(os.getcwd() + '/e', 'd')
        assert os.path.getsize(path) == 4
        often(path, 'last')
        os.unlink('d')
        missing(path)
        os.rename('e', 'd')
# A watch reports each open and each close once.
libc = ctypes.CDLL(None)
IN_CLOSE_NOWRITE, IN_OPEN = 0x10, 0x20
often('d/f', 'last')
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, b'd', IN_OPEN | IN_CLOSE_NOWRITE) > 0
for round in range(20):
    content('d/f')
    seen = os.read(watch, 4096)
    masks = []
    while seen:
        _, mask, _, length = struct.unpack_from('iIII', seen)
        masks.append(mask)
        seen = seen[16 + length:]
    assert masks == [IN_OPEN, IN_CLOSE_NOWRITE], masks
os.close(watch)
if os.getuid() != 0:
    often('d/f', 'last')
    os.chmod(there, 0)
    fails('d/f', errno.EACCES)
    os.chmod(there, 0o600)
    os.chmod(os.path.join(host, 'd'), 0)
    fails('d/f', errno.EACCES)
    os.chmod(os.path.join(host, 'd'), 0o700)
print('seen')
";

#[test]
fn an_open_finds_what_others_have_put_there() {
    let mut users = vec![User::Own];
    if may_become_another_user() {
        users.push(User::Nobody);
    }
    for user in users {
        let place = Place::new(Backend::Pass, Intercept::Notify, user);
        let host = place.path("pass");
        let script = format!("python3 - \"{}\" <<'EOF'{PROGRAM}EOF", host.display());
        let ended = finish(&mut place.shell(&script)).expect(0);
        assert_eq!(ended.text(), "seen\n");
    }
}
