//! Files of a pass-through mount, or of an encrypted directory, that others change by their paths on the host. A program that opens a file often opens it
//! without the monitor.

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

/// As `PROGRAM`, in an encrypted directory; the argument is the directory with the encrypted files.
const ENCRYPTED: &str = "
import errno, mmap, os, shutil, sys, time
host, = sys.argv[1:]
def lower(name):
    ino = os.stat(name).st_ino
    paths = [os.path.join(host, found) for found in os.listdir(host)]
    path, = [path for path in paths if os.stat(path).st_ino == ino]
    return path
def content(path):
    fd = os.open(path, os.O_RDONLY)
    try: return os.read(fd, 100000).decode()
    finally: os.close(fd)
def often(path, expected):
    for _ in range(50):
        found = content(path)
        assert found == expected, (path, found, expected)
def put(name, text, mode='w'):
    with open(name, mode) as f: f.write(text)
def fails(path, error):
    for _ in range(5):
        try: os.close(os.open(path, os.O_RDONLY))
        except OSError as e: assert e.errno == error, e
        else: raise AssertionError(path)
texts = ['one', 'two', 'a longer one' * 1000, '']
sources = []
for index, text in enumerate(texts):
    put('from%d' % index, text)
    sources.append(lower('from%d' % index))
put('f', 'first')
there = lower('f')
for round in range(10):
    for path in ['f', os.getcwd() + '/f']:
        for source, text in zip(sources, texts):
            shutil.copyfile(source, there)
            often(path, text)
            shutil.copyfile(source, there + 'x')
            os.replace(there + 'x', there)
            often(path, text)
        put(path, 'old')
        often(path, 'old')
        with open(there, 'rb') as f: old = f.read()
        put(path, 'OWN', 'r+')
        often(path, 'OWN')
        # Neither size nor file id change.
        with open(there, 'r+b') as f: f.write(old)
        often(path, 'old')
        put(path, 'L', 'r+')
        often(path, 'Lld')
        os.truncate(path, 2)
        often(path, 'Ll')
        os.rename(there, there + 'x')
        fails(path, errno.ENOENT)
        os.rename(there + 'x', there)
        often(path, 'Ll')
        os.rename('f', 'g')
        fails(path, errno.ENOENT)
        os.rename('g', 'f')
        often(path, 'Ll')
        os.chmod(there, 0)
        if os.getuid() != 0: fails(path, errno.EACCES)
        os.chmod(there, 0o600)
        often(path, 'Ll')
        os.chmod(path, 0o644)
# The content of a file that a program maps can change without the encrypted file.
with open('f', 'r+b') as f: memory = mmap.mmap(f.fileno(), 0)
memory[0:1] = b'M'
often('f', 'Ml')
memory[0:1] = b'N'
often('f', 'Nl')
memory.close()
limit = time.monotonic() + 30
while content('f') != 'two':
    time.sleep(0.5)
    shutil.copyfile(sources[1], there)
    assert time.monotonic() < limit
often('f', 'two')
# A removed file takes no space for long.
def removed():
    for process in filter(str.isdigit, os.listdir('/proc')):
        try: links = [os.readlink(entry.path) for entry in os.scandir('/proc/%s/fd' % process)]
        except OSError: continue
        if there + ' (deleted)' in links: return True
assert removed() is None
os.unlink('f')
fails('f', errno.ENOENT)
assert removed()
while removed():
    time.sleep(0.2)
    assert time.monotonic() < limit
print('seen')
";

#[test]
fn an_open_finds_what_others_have_put_there() {
    let mut users = vec![User::Own];
    if may_become_another_user() {
        users.push(User::Nobody);
    }
    for user in users {
        for (backend, host, program) in [
            (Backend::Pass, "pass", PROGRAM),
            (Backend::Aes, "volume", ENCRYPTED),
        ] {
            let place = Place::new(backend, Intercept::Notify, user);
            let host = place.path(host);
            let script = format!("python3 - \"{}\" <<'EOF'{program}EOF", host.display());
            let ended = finish(&mut place.shell(&script)).expect(0);
            assert_eq!(ended.text(), "seen\n");
        }
    }
}
