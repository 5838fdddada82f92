//! Real programs in a mount, and their own judgement of what they find there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use goanna_tests::{
    Backend, Engine, Facility, Intercept, Place, User, finish, finish_within, go_program, is_long,
    may_become_another_user, same_tree, skip, tools::has, tree,
};

/// One test a place; interception by ptrace is slow, so one back end represents all.
macro_rules! programs {
    ($($name:ident needs $($tool:literal)+ => $body:expr;)*) => {
        $(mod $name {
            use super::*;
            fn run(backend: Backend, intercept: Intercept, user: User) {
                if user == User::Nobody && !may_become_another_user() {
                    return;
                }
                if [$($tool),+].iter().all(|tool| has(tool)) {
                    let place = Place::new(backend, intercept, user);
                    $body(&place);
                    place.fsck();
                }
            }
            #[test]
            fn pass() { run(Backend::Pass, Intercept::Notify, User::Own) }
            #[test]
            fn aes() { run(Backend::Aes, Intercept::Notify, User::Own) }
            #[test]
            fn aes_nobody() { run(Backend::Aes, Intercept::Notify, User::Nobody) }
            #[test]
            fn fjall() { run(Backend::Amino(Engine::Fjall), Intercept::Notify, User::Own) }
            #[test]
            fn fjall_nobody() { run(Backend::Amino(Engine::Fjall), Intercept::Notify, User::Nobody) }
            #[test]
            fn fjall_ptrace() { run(Backend::Amino(Engine::Fjall), Intercept::Ptrace, User::Own) }
            #[test]
            fn sled() { run(Backend::Amino(Engine::Sled), Intercept::Notify, User::Own) }
        })*
    };
}

programs! {
    git_history needs "git" => git;
    python_programs needs "python3" => python;
    sqlite_writers needs "sqlite3" => sqlite;
    bash_scripts needs "bash" => bash;
    file_tools needs "tar" "find" "du" "install" => copies;
    rsync_trees needs "rsync" => rsync;
    c_build needs "make" "cc" => build;
    go_program needs "go" => go;
    leak_sanitizer needs "cc" => leaks;
    gdb_and_strace needs "cc" "gdb" "strace" => debuggers;
}

/// Runs a script in the mount with a limit fit for slow machines, and gives its output.
#[track_caller]
fn script(place: &Place, text: &str) -> String {
    let mut command = place.shell(&format!("{{ {text}\n}}"));
    let ended = finish_within(
        &mut command,
        Duration::from_secs(if is_long() { 1800 } else { 240 }),
    );
    assert!(
        ended.status == 0,
        "{}:\n{}{}",
        ended.how(),
        ended.text(),
        ended.errors()
    );
    ended.text()
}

/// Writes a file that commands find at the path given back.
fn input(place: &Place, name: &str, text: &str) -> String {
    let path = place.path("host").join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn git(place: &Place) {
    let commits = if is_long() { 1000 } else { 50 };
    let text = script(
        place,
        &format!(
            r#"set -e; mkdir repo; cd repo
            export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
            git init -q -b main .; git config user.name tester; git config user.email tester@example.com; git config gc.auto 0
            mkdir dir; for i in $(seq 1 {commits}); do
              echo "line $i" >> file; echo "$i" > dir/f$((i % 7))
              git add -A; git commit -q -m "commit $i"
            done
            git tag half HEAD~$(({commits} / 2)); git branch side half; git checkout -q side; echo side > side; git add side
            git commit -q -m side; git checkout -q main; git merge -q -m merge side
            git gc -q --prune=now; git fsck --full --strict 2>&1
            git status --porcelain; git rev-list --count HEAD; git rev-parse HEAD^{{tree}}; wc -l < file
            cd ..; git clone -q repo copy; cd copy; git log -1 --format=%s; git rev-parse HEAD^{{tree}}"#
        ),
    );
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("dangling"))
        .collect();
    let count = (commits + 2).to_string();
    let file_lines = commits.to_string();
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(lines[0], count, "{text}");
    assert_eq!(lines[2], file_lines, "{text}");
    assert_eq!(lines[3], "merge", "{text}");
    assert_eq!(lines[1], lines[4], "the clone has another tree:\n{text}");
    // What the next run finds is still sound.
    let text = script(
        place,
        "cd repo && git fsck --full --strict && git status --porcelain && cat dir/f1 | wc -l",
    );
    assert_eq!(text.trim(), "1");
}

const PYTHON: &str = r#"
import mmap, multiprocessing, os, sys, tempfile, shutil, sqlite3, json, pathlib, zipfile

def work(n):
    with open(f"out{n}", "w") as f:
        for i in range(200):
            f.write(f"{n} {i}\n")
    with open("shared.bin", "r+b") as f:
        m = mmap.mmap(f.fileno(), 0)
        m[n * 4096:(n + 1) * 4096] = bytes([n + 1]) * 4096
        m.flush()
        m.close()
    return sum(1 for _ in open(f"out{n}"))

if __name__ == "__main__":
    with open("shared.bin", "wb") as f:
        f.truncate(8 * 4096)
    with multiprocessing.Pool(4) as pool:
        counts = pool.map(work, range(8))
    assert counts == [200] * 8, counts
    data = open("shared.bin", "rb").read()
    assert all(data[i * 4096:(i + 1) * 4096] == bytes([i + 1]) * 4096 for i in range(8))
    queue = multiprocessing.Queue()
    def put(): queue.put(os.getcwd())
    p = multiprocessing.Process(target=put); p.start(); where = queue.get(); p.join()
    assert where == os.getcwd() == sys.argv[1], (where, os.getcwd())
    with tempfile.TemporaryDirectory(dir=".") as d:
        pathlib.Path(d, "a").write_text("a"); os.replace(os.path.join(d, "a"), os.path.join(d, "b"))
        assert os.listdir(d) == ["b"]
    os.makedirs("tree/x/y"); open("tree/x/y/z", "w").write("z")
    shutil.copytree("tree", "tree2"); shutil.move("tree2", "tree3"); shutil.rmtree("tree")
    assert sorted(str(p) for p in pathlib.Path("tree3").rglob("*")) == ["tree3/x", "tree3/x/y", "tree3/x/y/z"]
    with zipfile.ZipFile("z.zip", "w") as z: z.write("out0")
    assert zipfile.ZipFile("z.zip").read("out0") == open("out0", "rb").read()
    pathlib.Path("pkg").mkdir(); pathlib.Path("pkg/__init__.py").write_text("value = 17\n")
    sys.path.insert(0, os.getcwd()); import pkg
    assert pkg.value == 17 and os.path.exists("pkg/__pycache__")
    e = os.scandir("."); names = {x.name for x in e if x.is_file()}
    assert "shared.bin" in names
    fd = os.open("fd", os.O_RDWR | os.O_CREAT); os.pwrite(fd, b"abc", 5); assert os.fstat(fd).st_size == 8; os.close(fd)
    print("all right")
"#;

fn python(place: &Place) {
    let program = input(place, "program.py", PYTHON);
    let text = script(
        place,
        &format!(
            "mkdir py; cd py; python3 {program} $PWD; cp {program} ./here.py; mkdir again; cd again; python3 ../here.py $PWD"
        ),
    );
    assert_eq!(text, "all right\nall right\n");
}

fn sqlite(place: &Place) {
    let rows = if is_long() { 2000 } else { 60 };
    let text = script(
        place,
        &format!(
            r#"set -e
            sqlite3 db 'PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, who INT, n INT, filler TEXT); CREATE INDEX i ON t(who, n);'
            writer() {{ for n in $(seq 1 {rows}); do
                echo "PRAGMA busy_timeout=60000; BEGIN IMMEDIATE; INSERT INTO t(who, n, filler) VALUES($1, $n, hex(randomblob(300))); COMMIT;"
              done | sqlite3 -bail db > /dev/null; }}
            writer 1 & one=$!; writer 2 & two=$!; wait $one; wait $two
            sqlite3 db 'PRAGMA integrity_check; SELECT count(*), sum(n) FROM t WHERE who = 1; SELECT count(*), sum(n) FROM t WHERE who = 2;'
            sqlite3 db 'PRAGMA wal_checkpoint(TRUNCATE); VACUUM; PRAGMA journal_mode=DELETE; PRAGMA integrity_check;'
            sqlite3 old 'PRAGMA journal_mode=TRUNCATE; CREATE TABLE a(x); BEGIN; INSERT INTO a VALUES(1); ROLLBACK; INSERT INTO a VALUES(2); SELECT * FROM a; PRAGMA mmap_size=1000000; SELECT count(*) FROM a;'"#
        ),
    );
    let sum = rows * (rows + 1) / 2;
    let expected = format!(
        "wal\nok\n{rows}|{sum}\n{rows}|{sum}\n0|0|0\ndelete\nok\ntruncate\n2\n1000000\n1\n"
    );
    assert_eq!(text, expected);
    let text = script(
        place,
        "sqlite3 db 'PRAGMA integrity_check; SELECT count(*) FROM t;'; sqlite3 old 'SELECT * FROM a'",
    );
    assert_eq!(text, format!("ok\n{}\n2\n", rows * 2));
}

fn bash(place: &Place) {
    let text = script(
        place,
        r#"exec 3>three; echo one >&3; echo two >&3; exec 3>&-; cat three
        exec 4<>both; echo "read and write" >&4; exec 4<both; read -r line <&4; echo "$line"; exec 4>&-
        cat <<END > here
a $((2 * 21))
END
        cat <<'END' >> here
b $HOME
END
        cat here; cat <<< "here string"
        for i in 1 2 3 4; do (sleep 0.0$i; echo "job $i" > job$i) & done; wait; cat job?
        set -o noclobber; echo x > here 2>/dev/null || echo clobbered not; echo y >| here; cat here; set +o noclobber
        cat < <(echo process) > sub; cat sub; echo appended >> sub; wc -l < sub
        mkdir -p a/b; (cd a/b && pwd && cd .. && pwd); cd a; cd ..; echo *; echo a/*
        [[ -d a && -f sub && ! -e none && sub -nt three || sub -ot three || 1 ]] && echo tests
        mapfile -t lines < three; echo "${#lines[@]} ${lines[1]}"
        printf 'echo "script $0 $1"\nexit 3\n' > s.sh; bash s.sh arg; echo $?; . ./s.sh || true"#
            .replace("; . ./s.sh || true", "")
            .as_str(),
    );
    let top = place.top();
    let expected = format!(
        "one\ntwo\nread and write\na 42\nb $HOME\nhere string\njob 1\njob 2\njob 3\njob 4\nclobbered not\ny\nprocess\n2\n\
         {top}/a/b\n{top}/a\na both here job1 job2 job3 job4 sub three\na/b\ntests\n2 two\nscript s.sh arg\n3\n"
    );
    assert_eq!(text, expected);
}

/// A tree on the host with what such tools care about.
fn source_tree(place: &Place) -> String {
    let text = r#"set -e; umask 022; mkdir src; cd src
        mkdir -p d1/d2/d3; for i in 1 2 3 4 5; do seq 1 $((i * 1000)) > d1/f$i; done; : > empty; truncate -s 1M sparse
        printf x >> sparse; ln -s d1/f1 link; ln -s /nowhere dangling; ln d1/f1 hard; ln d1/f1 d1/d2/hard; mkfifo fifo
        chmod 600 d1/f2; chmod 755 d1/f3; chmod 4711 d1/f4; chmod 555 d1/d2/d3; mkdir ro; echo r > ro/r; chmod 444 ro/r
        printf 'name' > 'with blank'; printf 'name' > $'\xff\xfe'
        find . -exec touch -h -d '2019-05-06 07:08:09.123456789' {} +"#;
    finish(place.native("/bin/bash").args(["-c", text])).expect(0);
    place.path("host/src").to_str().unwrap().to_owned()
}

fn copies(place: &Place) {
    let source = source_tree(place);
    let expected = tree(Path::new(&source));
    let out = place.make_dir("out");
    let out = out.to_str().unwrap();
    let text = script(
        place,
        &format!(
            r#"set -e
            cp -a {source} cp; tar --format=posix -C {source} -cf t.tar .; mkdir tar; tar -C tar -xpf t.tar
            cp -a cp cp2; mv cp2 moved; mkdir sub; mv moved sub/; cp -a sub/moved {out}/cp; tar -C tar -czf {out}/t.tgz .; cp -a tar {out}/tar
            find cp -type f | wc -l; find cp -type l | wc -l; find cp -name 'f*' -size +3 -newermt 2019-01-01 | sort; find sub -empty -type f
            du -s --apparent-size -b cp/d1/f5 | cut -f 1; du -sh sub > /dev/null
            install -D -m 640 cp/d1/f1 inst/a/b; stat -c '%a %s' inst/a/b; install -d -m 750 inst/c; stat -c %a inst/c
            diff -r --no-dereference cp/d1 sub/moved/d1 && echo same; cmp cp/sparse tar/sparse && echo same
            ls -1 cp | wc -l; rm -rf sub; test ! -e sub; mkdir -p p/q/r; rmdir -p p/q/r; test ! -e p; touch -r cp/hard t; stat -c %y t
            head -c 100000 /dev/urandom > r; split -b 7000 r part.; cat part.* | cmp - r && echo joined; sort -R cp/d1/f5 | sort -n -o s; cmp s cp/d1/f5 && echo sorted
            sed -i s/1/one/ s; head -n 1 s; truncate -s 10 s; wc -c < s; dd if=r of=dd bs=1000 count=10 seek=5 status=none; stat -c %s dd
            mkdir -m 1777 m; stat -c %a m; mktemp -d -p . | wc -l; ln -s cp l; ls l/ | wc -l; readlink -f l/d1; realpath --relative-to=. l/d1"#
        ),
    );
    let top = place.top();
    let expected_text = format!(
        "12\n2\ncp/d1/f1\ncp/d1/f2\ncp/d1/f3\ncp/d1/f4\ncp/d1/f5\nsub/moved/empty\n23893\n640 3893\n750\nsame\nsame\n10\n\
         2019-05-06 07:08:09.123456789 +0000\njoined\nsorted\none\n10\n15000\n1777\n1\n10\n{top}/cp/d1\ncp/d1\n"
    );
    assert_eq!(text, expected_text);
    same_tree(&expected, &tree(&place.path("out/cp")));
    same_tree(&expected, &tree(&place.path("out/tar")));
}

fn rsync(place: &Place) {
    let source = source_tree(place);
    let expected = tree(Path::new(&source));
    let out = place.make_dir("out");
    let out = out.to_str().unwrap();
    let text = script(
        place,
        &format!(
            "set -e; rsync -aH {source}/ r/; rsync -aHni --delete {source}/ r/; rsync -aHS r/ {out}/r/; echo more >> r/d1/f5; rm r/hard; \
             rsync -aH --delete --checksum {source}/ r/; rsync -aHnic {source}/ r/; echo done"
        ),
    );
    assert_eq!(text, "done\n", "the second pass must find nothing to do");
    same_tree(&expected, &tree(&place.path("out/r")));
}

fn build(place: &Place) {
    let text = script(
        place,
        r#"set -e; mkdir proj; cd proj
        printf '#include <stdio.h>\nint f(int);\nint main(void){printf("%%d\\n", f(20));return 0;}\n' > main.c
        for i in 1 2 3 4 5 6; do printf "int g$i(int x){return x+$i;}\n" > g$i.c; done
        printf 'int g1(int),g2(int),g3(int),g4(int),g5(int),g6(int);\nint f(int x){return g1(g2(g3(g4(g5(g6(x))))));}\n' > f.c
        printf 'CFLAGS=-O1\nOBJ=main.o f.o g1.o g2.o g3.o g4.o g5.o g6.o\nprog: $(OBJ)\n\tcc -o $@ $(OBJ)\nlib.a: $(OBJ)\n\tar rcs $@ $(OBJ)\nlib.so: f.c g1.c\n\tcc -shared -fPIC -o $@ $^\n' > Makefile
        make -s -j2 prog lib.a lib.so; ./prog; make -q prog && echo up to date; touch g1.c; make -q prog || echo out of date
        make -s prog; ./prog; ar t lib.a | wc -l; nm lib.so | grep -c ' T '"#,
    );
    assert_eq!(text, "41\nup to date\nout of date\n41\n8\n2\n");
}

const GO: &str = r#"package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	must(os.MkdirAll("go/a/b/c", 0o755))
	var wg sync.WaitGroup
	for i := 0; i < 16; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			name := fmt.Sprintf("go/a/f%d", i)
			must(os.WriteFile(name, bytes.Repeat([]byte{byte('a' + i)}, 1000*i), 0o644))
			must(os.Rename(name, fmt.Sprintf("go/a/b/g%d", i)))
		}(i)
	}
	wg.Wait()
	count, size := 0, int64(0)
	must(filepath.Walk("go", func(path string, info os.FileInfo, err error) error {
		must(err)
		count++
		if info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	}))
	f, err := os.OpenFile("go/mapped", os.O_RDWR|os.O_CREATE, 0o600)
	must(err)
	must(f.Truncate(8192))
	m, err := syscall.Mmap(int(f.Fd()), 0, 8192, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(err)
	copy(m[4096:], "mapped by go")
	b := make([]byte, 12)
	_, err = f.ReadAt(b, 4096)
	must(err)
	fmt.Println(count, size, string(b))
	_, err = os.Stat("go/none")
	fmt.Println(os.IsNotExist(err))
	must(os.RemoveAll("go"))
	wd, err := os.Getwd()
	must(err)
	fmt.Println(wd)
}
"#;

fn go(place: &Place) {
    let source = input(place, "main.go", GO);
    let binary = place.path("host/goprog");
    // Static, and it makes its system calls itself.
    go_program(Path::new(&source), &binary);
    let text = script(
        place,
        &format!("{0}; cp {0} ./prog; ./prog", binary.display()),
    );
    let once = format!("20 120000 mapped by go\ntrue\n{}\n", place.top());
    assert_eq!(text, once.repeat(2));
}

/// LeakSanitizer attaches to all threads of its program by ptrace(2).
fn leaks(place: &Place) {
    let source = input(place, "leaks.c", LEAKS);
    let text = script(
        place,
        &format!(
            "cc -w -g -pthread -fsanitize=address {source} -o leaks
             ./leaks; echo $?; ./leaks x 2>report; echo $?; grep -o 'Direct leak of 100 byte' report"
        ),
    );
    assert_eq!(text, "0\n1\nDirect leak of 100 byte\n");
}

/// A break point, a watch point and a step, and the calls of a shell and its children.
fn debuggers(place: &Place) {
    let source = input(place, "debugged.c", DEBUGGED);
    let commands = input(place, "commands", GDB_COMMANDS);
    let text = script(
        place,
        &format!(
            "cc -g -pthread {source} -o debugged
             gdb -q -nx -batch -x {commands} ./debugged
             strace -f -qq -e trace=rename,renameat,renameat2 -o calls sh -c 'mv answer moved; mv missing other' 2>/dev/null
             grep -c 'answer.*moved.* = 0' calls
             cat moved"
        ),
    );
    assert!(text.contains("$1 = 5\n"), "{text}");
    assert!(text.contains("Old value = 0\nNew value = 5\n"), "{text}");
    assert!(text.ends_with("exited normally]\n1\n5\n"), "{text}");
}

const GDB_COMMANDS: &str = "
set confirm off
break add
run
finish
watch result
continue
print result
delete
continue
quit
";

const DEBUGGED: &str = r#"
#include <pthread.h>
#include <stdio.h>

volatile int result;

static int add(int a, int b)
{
    return a + b;
}

static void *sum(void *unused)
{
    result = add(2, 3);
    return unused;
}

int main(void)
{
    pthread_t thread;
    FILE *answer = fopen("answer", "w");

    pthread_create(&thread, NULL, sum, NULL);
    pthread_join(thread, NULL);
    fprintf(answer, "%d\n", result);
    return 0;
}
"#;

const LEAKS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static int fds[2];
static char *volatile kept;

static void *wait(void *unused)
{
    char *volatile of_thread = malloc(50);
    char byte;

    for (int i = 0; i < 50; i++) {
        int fd = open("leaked", O_RDWR | O_CREAT, 0644);
        if (write(fd, of_thread, 50) != 50 || close(fd) != 0)
            abort();
    }
    if (read(fds[0], &byte, 1) == 1)
        free(of_thread);
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t thread;

    if (pipe(fds) != 0)
        return 1;
    for (int i = 0; i < 4; i++)
        pthread_create(&thread, NULL, wait, NULL);
    kept = malloc(100);
    usleep(20000);
    if (count > 1)
        kept = NULL;
    return 0;
}
"#;

/// `chattr +i` failed with EPERM, though the caller was the superuser. Files that have the flag are protected, and shown by `lsattr`.
#[test]
fn chattr_protects_a_file_until_the_flag_is_removed() {
    if !has("chattr") || !has("lsattr") {
        return;
    }
    if !goanna_tests::is_root() {
        return skip(Facility::Root, "only root may protect a file");
    }
    let place = Place::amino();
    let told = script(
        &place,
        "echo a >f; chattr +i f && lsattr f | grep -q '^[^ ]*i' && echo immutable; \
         (echo b >>f) 2>/dev/null || echo kept; rm -f f 2>/dev/null || echo named; \
         chattr -i f && echo b >>f && cat f && rm f && echo removed",
    );
    assert_eq!(told, "immutable\nkept\nnamed\na\nb\nremoved\n");
    place.fsck();
}
