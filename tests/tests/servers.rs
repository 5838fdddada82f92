//! Daemons with Unix sockets in a mount: they start, are talked to, restart and stop as natively.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use goanna_tests::{
    Backend, Engine, Facility, Intercept, Place, User, finish, finish_within, go_program, is_root,
    may_become_another_user, skip, tools::has,
};

const LIMIT: Duration = Duration::from_secs(240);

/// What a script prints that runs in the mount; it must succeed.
#[track_caller]
fn script(place: &Place, text: &str) -> String {
    let ended = finish_within(&mut place.shell(&format!("{{ {text}\n}}")), LIMIT);
    assert!(
        ended.status == 0,
        "{}:\n{}{}",
        ended.how(),
        ended.text(),
        ended.errors()
    );
    ended.text()
}

/// Where Debian has PostgreSQL's programs.
fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    found.sort();
    found.pop()
}

/// Root starts the server for another user, as Debian does; an ordinary user starts its own.
fn postgres(place: &Place) {
    let Some(bin) = postgres_programs() else {
        skip(Facility::Program, "PostgreSQL is not installed");
        return;
    };
    let become_user = if is_root() && place.user() == User::Own {
        "setpriv --reuid=65534 --regid=65534 --clear-groups"
    } else {
        ""
    };
    let names = format!(
        r#"set -e; P={top}/pg; PATH={bin}:$PATH
        as() {{ {become_user} "$@"; }}
        ctl() {{ as pg_ctl -s -D $P/data -l $P/log -w -t 100 "$@" || {{ cat $P/log; exit 1; }}; }}
        sql() {{ as psql -X -q -t -A -h $P -U postgres -c "$1" postgres; }}"#,
        top = place.top(),
        bin = bin.display(),
    );
    let text = script(
        place,
        &format!(
            r#"{names}
            mkdir -m 700 pg; [ -z "{become_user}" ] || chown 65534:65534 pg; cd /
            as initdb -D $P/data -A trust -U postgres -N > /dev/null
            printf "listen_addresses = ''\nunix_socket_directories = '$P'\n" >> $P/data/postgresql.conf
            ctl start; stat -c '%A %u' $P/.s.PGSQL.5432 | sed s/$(as id -u)$/owner/
            sql 'CREATE TABLE t(i int PRIMARY KEY, s text); INSERT INTO t SELECT i, repeat(chr(65 + i % 26), i) FROM generate_series(1, 500) i'
            sql 'SELECT count(*), sum(length(s)) FROM t'
            ctl restart; sql 'SELECT count(*), sum(length(s)) FROM t'
            sql "INSERT INTO t VALUES (501, 'before the crash')"
            ctl stop -m immediate; ctl start; sql 'SELECT s FROM t WHERE i = 501'
            ctl stop; ls -A $P"#
        ),
    );
    let sum = 500 * 501 / 2;
    assert_eq!(
        text,
        format!("srwxrwxrwx owner\n500|{sum}\n500|{sum}\nbefore the crash\ndata\nlog\n")
    );
    // What the next run finds.
    let text = script(
        place,
        &format!(
            "{names}; cd /; ctl start; sql 'SELECT count(*) FROM t'; ctl stop -m fast; ls -A $P"
        ),
    );
    assert_eq!(text, "501\ndata\nlog\n");
}

const GO: &str = r#"package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func main() {
	if os.Args[1] == "ask" {
		c, err := net.Dial("unix", os.Args[2])
		must(err)
		fmt.Fprintln(c, os.Args[3])
		line, err := bufio.NewReader(c).ReadString('\n')
		must(err)
		fmt.Printf("%s from %s", line[:len(line)-1], c.RemoteAddr())
		fmt.Println()
		return
	}
	l, err := net.Listen("unix", os.Args[2])
	must(err)
	fmt.Println("serving", l.Addr())
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() {
		<-ended
		// Removes the socket by the name that the kernel reports.
		must(l.Close())
		fmt.Println("closed")
		os.Exit(0)
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			select {}
		}
		go func() {
			line, err := bufio.NewReader(c).ReadString('\n')
			must(err)
			fmt.Fprint(c, "answer to "+line)
			c.Close()
		}()
	}
}
"#;

/// A server that removes its socket when it ends, and cannot start while one is there.
fn go(place: &Place) {
    if !has("go") {
        return;
    }
    let (source, program) = (place.path("host/server.go"), place.path("host/server"));
    fs::write(&source, GO).unwrap();
    go_program(&source, &program);
    let top = place.top();
    let text = script(
        place,
        &format!(
            r#"set -e; S={}; mkdir -p run
            for name in {top}/run/absolute run/relative; do for round in 1 2; do
                $S serve $name > log & until [ -s log ]; do sleep .01; done
                $S ask $name $round; kill $!; wait $!; cat log; rm log; ls -A run
            done; done"#,
            program.display()
        ),
    );
    let mut expected = String::new();
    for name in [format!("{top}/run/absolute"), "run/relative".to_owned()] {
        for round in 1..=2 {
            expected += &format!("answer to {round} from {name}\nserving {name}\nclosed\n");
        }
    }
    assert_eq!(text, expected);
    finish(&mut place.shell("rmdir run")).expect(0);
}

/// One test a place.
macro_rules! servers {
    ($($name:ident)*) => {
        $(mod $name {
            use super::*;
            fn run(backend: Backend, intercept: Intercept, user: User) {
                if user == User::Nobody && !may_become_another_user() {
                    return;
                }
                let place = Place::new(backend, intercept, user);
                super::$name(&place);
                place.fsck();
            }
            #[test]
            fn pass() { run(Backend::Pass, Intercept::Notify, User::Own) }
            #[test]
            fn fjall() { run(Backend::Amino(Engine::Fjall), Intercept::Notify, User::Own) }
            #[test]
            fn fjall_nobody() { run(Backend::Amino(Engine::Fjall), Intercept::Notify, User::Nobody) }
            #[test]
            fn fjall_ptrace() { run(Backend::Amino(Engine::Fjall), Intercept::Ptrace, User::Own) }
        })*
    };
}

servers! { postgres go }
