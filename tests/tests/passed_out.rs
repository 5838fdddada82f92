//! Descriptors of files in a store that a program of a run sends to a process outside of it: the store keeps what the run's
//! programs write and commit.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;

use goanna_tests::{
    Backend, Engine, Intercept, Place, User, finish, may_become_another_user, tools::has,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Receives one message; its descriptors as files.
fn receive(peer: &UnixStream) -> Vec<File> {
    let mut bytes = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    recvmsg(peer, &mut parts, &mut control, RecvFlags::empty()).unwrap();
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds.map(File::from));
        }
    }
    files
}

fn text(file: &File) -> String {
    let mut bytes = vec![0; 64];
    let got = file.read_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes[..got]).into_owned()
}

fn places() -> Vec<Place> {
    let place = |intercept, user| Place::new(Backend::Amino(Engine::Fjall), intercept, user);
    let mut places = vec![
        place(Intercept::Notify, User::Own),
        place(Intercept::Ptrace, User::Own),
    ];
    if may_become_another_user() {
        places.push(place(Intercept::Notify, User::Nobody));
    }
    places
}

/// Sends the file `name`, opened for reading and for writing, and the host's /dev/null; waits for an answer; then rewrites it.
const SENDER: &str = "import os, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
open('base', 'w').write('committed')
fds = [os.open('base', os.O_RDONLY), os.open('base', os.O_RDWR), os.open('/dev/null', os.O_WRONLY)]
os.read(fds[0], 3)
print(socket.send_fds(s, [b'some', b'thing'], fds))
s.recv(10)
print(open('base').read()); os.pwrite(fds[1], b'rewritten', 0); print(open('base').read())
s.send(b'done')";

fn connect_and_change(place: &Place, listener: &UnixListener, script: &Path, socket: &Path) {
    let command = format!("python3 {} {}", script.display(), socket.display());
    let run = place
        .shell(&command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let files = receive(&peer);
    assert_eq!(files.len(), 3);
    let (reader, writer) = (&files[0], &files[1]);
    assert_eq!(
        (text(reader), text(writer)),
        ("committed".into(), "committed".into())
    );
    let position = rustix::fs::tell(reader).unwrap();
    assert_eq!(position, 3, "the descriptor's offset");
    let errno = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    assert_eq!(
        errno(writer.write_all_at(b"outsider!", 0)),
        Some(libc::EPERM)
    );
    assert_eq!(
        errno(reader.write_all_at(b"outsider!", 0)),
        Some(libc::EBADF)
    );
    assert_eq!(errno(writer.set_len(0)), Some(libc::EPERM));
    // By a name of the descriptor, too.
    let again = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let again = File::options().write(true).open(again);
    let written = again.and_then(|file| file.write_all_at(b"outsider!", 0));
    assert!(written.is_err(), "an outsider has written to the file");
    (&files[2])
        .write_all(b"the host's own travels as it is")
        .unwrap();
    peer.write_all(b"ok").unwrap();
    peer.read_exact(&mut [0; 4]).unwrap();
    assert_eq!(text(reader), "committed", "the content as it was sent");
    let output = run.wait_with_output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{err}");
    assert_eq!(out, "9\ncommitted\nrewritten\n", "{err}");
    assert_eq!(err.matches("outside of the run").count(), 1, "{err}");
    assert!(err.contains("/base"), "{err}");
}

#[test]
fn an_outsider_gets_a_copy_that_it_cannot_change() {
    if !has("python3") {
        return;
    }
    for place in places() {
        let script = place.path("host").join("send.py");
        std::fs::write(&script, SENDER).unwrap();
        let socket = place.path("host").join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&socket, open).unwrap();
        connect_and_change(&place, &listener, &script, &socket);
        let after = finish(&mut place.shell("cat base"));
        assert_eq!(after.text(), "rewritten");
        place.fsck();
    }
}

/// Standard input is a socket of a process outside; no socket is made inside.
#[test]
fn an_inherited_socket_leads_outside() {
    if !has("python3") {
        return;
    }
    let place = Place::amino();
    let script = place.path("host").join("send.py");
    let text_of = "import array, os, socket
s = socket.socket(fileno=0)
f = open('base', 'w+'); f.write('committed'); f.flush()
socket.send_fds(s, [b'x'], [f.fileno()]); s.recv(4)";
    std::fs::write(&script, text_of).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = place.shell(&format!("exec python3 {}", script.display()));
    let mut run = command.stdin(OwnedFd::from(theirs)).spawn().unwrap();
    drop(command);
    let files = receive(&ours);
    assert_eq!(text(&files[0]), "committed");
    let written = files[0].write_all_at(b"outsider!", 0);
    assert!(written.is_err(), "an outsider has written to the file");
    (&ours).write_all(b"ok").unwrap();
    assert!(run.wait().unwrap().success());
    assert_eq!(finish(&mut place.shell("cat base")).text(), "committed");
}

/// What an aborted transaction has passed out changes nothing.
#[test]
fn the_store_keeps_what_was_committed_when_a_transaction_aborts() {
    if !has("python3") {
        return;
    }
    let place = Place::amino();
    assert_eq!(
        finish(&mut place.shell("printf committed > base")).status,
        0
    );
    let script = place.path("host").join("send.py");
    let text_of = "import os, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
f = os.open('base', os.O_RDWR); os.pwrite(f, b'uncommitt', 0)
socket.send_fds(s, [b'x'], [f]); s.recv(4); sys.exit(3)";
    std::fs::write(&script, text_of).unwrap();
    let socket = place.path("host").join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let line = format!("python3 {} {}", script.display(), socket.display());
    let mut run = place.transaction(&line).spawn().unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let files = receive(&peer);
    assert_eq!(
        text(&files[0]),
        "uncommitt",
        "what the program reads itself"
    );
    assert!(files[0].write_all_at(b"outsider!", 0).is_err());
    peer.write_all(b"ok").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(3));
    assert_eq!(finish(&mut place.shell("cat base")).text(), "committed");
}

/// Between processes of the run descriptors are passed unchanged, whichever process has made the socket.
#[test]
fn descriptors_travel_inside_the_run() {
    if !has("python3") {
        return;
    }
    let place = Place::amino();
    let script = place.path("host").join("inside.py");
    // The process that listens has ended when the other one connects.
    let text_of = "import os, socket, sys
path = sys.argv[1]
for address in (path, '\\0' + path, 'inside'):
    server = socket.socket(socket.AF_UNIX); server.bind(address)
    if os.fork() == 0:
        server.listen(); os._exit(0)
    os.wait()
    if os.fork() == 0:
        peer = server.accept()[0]
        os.pwrite(socket.recv_fds(peer, 4, 4)[1][0], b'other', 0); os._exit(0)
    f = os.open('base', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    s = socket.socket(socket.AF_UNIX); s.connect(address); socket.send_fds(s, [b'x'], [f])
    os.wait(); print(os.pread(f, 9, 0).decode())
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
socket.send_fds(a, [b'x'], [f])
os.pwrite(socket.recv_fds(b, 4, 4)[1][0], b'third', 0); print(open('base').read())";
    std::fs::write(&script, text_of).unwrap();
    let socket = place.path("host").join("s");
    let line = format!("python3 {} {}", script.display(), socket.display());
    let ended = finish(&mut place.shell(&line));
    assert_eq!(
        ended.text(),
        "other\nother\nother\nthird\n",
        "{}",
        ended.errors()
    );
    assert!(!ended.errors().contains("outside"), "{}", ended.errors());
}

/// A program that makes no socket itself connects the one that it has inherited from outside of the run.
#[test]
fn an_inherited_socket_connects_to_a_name_in_a_mount() {
    use rustix::net::{AddressFamily, SocketType, socket};
    if !has("python3") {
        return;
    }
    let place = Place::amino();
    let ours = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let script = place.path("host").join("connect.py");
    let text_of = "import socket
s = socket.socket(fileno=0); s.connect('server'); print(s.getpeername())";
    std::fs::write(&script, text_of).unwrap();
    let server = "import os, socket; s = socket.socket(socket.AF_UNIX); s.bind('server'); s.listen(); s.accept()";
    let line = format!(
        r#"{{ python3 -c "{server}" & while [ ! -S server ]; do sleep 0.01; done
        until python3 {0} 2>/dev/null; do kill -0 $! || exec python3 {0}; done; wait; }}"#,
        script.display()
    );
    let mut command = place.shell(&line);
    let run = command.stdin(ours).stdout(Stdio::piped()).spawn().unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "server\n");
}
