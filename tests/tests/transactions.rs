//! Transactions inside a run: commit and abort of their changes, visibility, and the output of `amino txn`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use goanna_tests::{
    Backend, Ended, Engine, Intercept, Place, User, command_in_path, finish_within, is_long,
    may_become_another_user, program, same_tree, tools::has, tree,
};

/// One test for each kind of place that `$body` is to hold in.
macro_rules! in_stores {
    ($($name:ident => $body:expr;)*) => {
        $(mod $name {
            use super::*;
            in_stores!(@ $body;
                fjall_notify(Fjall, Notify, Own) fjall_notify_nobody(Fjall, Notify, Nobody)
                fjall_ptrace(Fjall, Ptrace, Own) fjall_ptrace_nobody(Fjall, Ptrace, Nobody)
                sled_notify(Sled, Notify, Own) sled_ptrace_nobody(Sled, Ptrace, Nobody));
        })*
    };
    (@ $body:expr; $($test:ident($engine:ident, $intercept:ident, $user:ident))*) => {
        $(#[test]
        fn $test() {
            if User::$user == User::Nobody && !may_become_another_user() {
                return;
            }
            let place = Place::new(Backend::Amino(Engine::$engine), Intercept::$intercept, User::$user);
            $body(&place);
            place.fsck();
        })*
    };
}

in_stores! {
    shells => the_right_four_commands;
    redirections => builtins_and_redirections;
    changes => every_change_is_undone_and_done;
    views => programs_see_what_they_should;
    calls => calls_begin_end_leave_and_join;
    commands => the_commands_say_what_they_did;
    written_programs => programs_written_inside;
    deaths => what_the_dead_began_is_undone;
    sharing => transactions_go_from_shell_to_shell;
    trees => parallel_children;
    copies => copies_wait_for_a_lock_and_lose_nothing;
}

/// Runs a script of `shell` that starts in the mount, with `amino` in its path.
#[track_caller]
fn run_in(place: &Place, shell: &str, script: &str) -> Ended {
    let limit = Duration::from_secs(if is_long() { 600 } else { 30 });
    let script = format!("cd {}\n{script}", place.top());
    let mut command = command_in_path(place, &[]);
    finish_within(command.args([shell, "-c", &script]), limit)
}

/// The output of a script of bash that stops at the first failure.
#[track_caller]
fn script(place: &Place, text: &str) -> String {
    let ended = run_in(place, "bash", &format!("set -eu; umask 022\n{text}")).expect(0);
    assert!(
        ended.stderr.is_empty(),
        "{}{}",
        ended.text(),
        ended.errors()
    );
    ended.text()
}

/// Runs a program of `tests/programs`, which says what is not as it should be.
#[track_caller]
fn check(place: &Place, name: &str, args: &[&str]) {
    let program = program(name, &place.path("host"), false);
    let mut command = place.run();
    command.arg(program).arg(place.top()).args(args);
    let ended = finish_within(&mut command, Duration::from_secs(120)).expect(0);
    eprint!("{}", ended.errors());
}

fn the_right_four_commands(place: &Place) {
    for shell in ["sh", "bash", "dash"] {
        let text = format!(
            r#"set -eu; mkdir {shell}; cd {shell}; echo before > kept; echo before > changed
            amino txn begin > id
            echo 1 > one; mkdir dir; mv kept dir/moved
            amino txn begin >> id
            rm one; echo inner > dir/inner
            amino txn abort
            echo 4 >> changed
            amino txn commit
            rm id; find . | sort; cat one dir/moved changed; amino txn status"#
        );
        if shell == "dash" && !has("dash") {
            continue;
        }
        let ended = run_in(place, shell, &text).expect(0);
        let expected = ".\n./changed\n./dir\n./dir/moved\n./one\n1\nbefore\nbefore\n4\nno current transaction\n";
        assert_eq!(ended.text(), expected, "{shell}: {}", ended.errors());
        // The next run finds the same.
        let again = script(
            place,
            &format!("cd {shell}; find . | sort; cat one dir/moved changed"),
        );
        assert_eq!(again + "no current transaction\n", expected, "{shell}");
    }
}

fn builtins_and_redirections(place: &Place) {
    for shell in ["sh", "bash"] {
        let text = format!(
            r#"set -eu; mkdir {shell}; cd {shell}; printf 'l1\nl2\nl3\nl4\nl5\n' > lines; echo start > log
            exec 3< lines 4>> log
            read a <&3
            amino txn begin > /dev/null
            read b <&3; echo "$b" >&4; echo appended >> log; exec 5> fresh; echo fresh >&5
            read f < fresh; echo "seen $f"
            while read -r line; do last=$line; done < log; echo "last $last"
            cat << END > here
here $a $b
END
            amino txn begin > /dev/null
            read c <&3; echo "$c" >&4; echo "inner" >&5; mkdir inner; cd inner; echo x > y; cd ..
            echo "inside $(cat log | wc -l) $(cat fresh | wc -l) $c"
            amino txn abort
            read c <&3; echo "again $c"
            exec 5>&-
            amino txn commit
            read d <&3; echo "then $d"; echo "$d" >&4
            test ! -e inner; cat log fresh here
            amino txn begin > /dev/null; read e <&3; exec 3<&-; echo "$e" >&4; echo never > never; amino txn abort
            echo end >&4; cat log; test ! -e never"#
        );
        let ended = run_in(place, shell, &text).expect(0);
        let log = "start\nl2\nappended\n";
        let expected = format!(
            "seen fresh\nlast appended\ninside 4 2 l3\nagain l3\nthen l4\n{log}l4\nfresh\nhere l1 l2\n{log}l4\nend\n"
        );
        assert_eq!(ended.text(), expected, "{shell}: {}", ended.errors());
    }
}

/// A tree with files of all types, `change`, which changes it, and `state`, which prints everything about it.
const CHANGES: &str = r#"
xattr() { python3 - "$@" << 'END'
import os, sys
for word in sys.argv[2:]:
    name, _, value = word.partition("=")
    os.setxattr(sys.argv[1], "user." + name, value.encode()) if value else os.removexattr(sys.argv[1], "user." + name)
END
}
state() { find . -printf '%p %y %m %n %i %U:%G %s %T@ %C@ %l\n' | sort; find . -type f -exec sha256sum {} + | sort; python3 - << 'END'
import os
paths = (os.path.join(dir, name) for dir, _, names in os.walk(".") for name in names)
for path in sorted(filter(os.path.isfile, paths)):
    print(path, [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))])
END
}
make() {
  for i in 1 2 3 4 5 6 7 8 9 10 11 12; do seq $i $((i * 300)) > f$i; done
  yes text | head -c 100000 > big; mkdir -p dir/sub empty target tree/a/b; for i in 1 2 3; do seq $i > tree/a/t$i; echo d > dir/d$i; done
  ln -s f1 link; ln f1 hard; mkfifo pipe; xattr f11 old=value both=1; mkdir -m 700 locked; echo gone > gone
}
change() {
  echo new > new; printf X | dd of=f1 conv=notrunc bs=1 seek=3 status=none; echo more >> f2; truncate -s 5 f3; truncate -s 100000 f4; : > f5
  fallocate -p -o 4096 -l 8192 big; fallocate -l 120000 f6; rm gone; mv f7 renamed; mv dir moved; mv f8 f9; ln f10 hard2; ln f10 moved/hard3
  ln -s f10 sym; ln -sfn f2 link; mkdir -p deep/er/est; echo deepest > deep/er/est/f; rmdir empty; mv -T tree target; chmod 600 f2; chmod 2755 target
  touch -d 2001-02-03T04:05:06.789 f3; xattr f11 old= both=2 fresh=yes; mkfifo pipe2; rm pipe; rm -r locked moved/sub; cp -a target target2; rm hard
  rm -r target/a; mv moved/d1 .; sed -i s/1/one/ f12; [ $(id -u) != 0 ] || chown 1:2 f6; mkdir a; mv a b; rmdir b; touch c; rm c
  exec 9> unlinked; rm unlinked; echo gone >&9; exec 9>&-
}
"#;

fn every_change_is_undone_and_done(place: &Place) {
    let host = place.path("host");
    // What the changes come to natively, without the times.
    let fixed = "find . -exec touch -h -d '2019-05-06 07:08:09' {} +";
    let text =
        format!("{CHANGES}\nset -eu; umask 022; mkdir native; cd native; make; change; {fixed}");
    goanna_tests::finish(place.native("/bin/bash").args(["-c", &text])).expect(0);
    let out = place.make_dir("out");
    let text = format!(
        r#"{CHANGES}
        host={host}; mkdir top; cd top; make; state > $host/before
        amino txn begin > /dev/null; change; amino txn abort
        state > $host/after; cmp $host/before $host/after
        amino txn begin > /dev/null; amino txn begin > /dev/null; change; amino txn abort
        state > $host/after; cmp $host/before $host/after
        mv f12 f13; amino txn commit; mv f13 f12
        amino txn begin > /dev/null; echo outer > outer; echo outer > gone
        amino txn begin > /dev/null; rm outer; change; state > $host/inner; amino txn commit
        state > $host/inside; cmp $host/inner $host/inside
        amino txn commit
        state > $host/outside; cmp $host/inside $host/outside
        {fixed}; cp -a . {out}/copy; cmp {out}/copy/f1 f1"#,
        host = host.display(),
        out = out.display(),
    );
    script(place, &text);
    same_tree(&tree(&host.join("native")), &tree(&out.join("copy")));
}

fn programs_see_what_they_should(place: &Place) {
    check(place, "txn_views", &[]);
}

fn calls_begin_end_leave_and_join(place: &Place) {
    check(place, "txn_calls", &[]);
}

fn the_commands_say_what_they_did(place: &Place) {
    let text = r#"set -u
        id=0123456789abcdef0123456789abcdef
        for command in commit abort suspend detach "resume $id" "attach $id"; do
          amino txn $command 2> message; echo "$command: $? $(grep -c '^amino: txn ' message) $(grep -c 'hint: ' message)"
        done
        amino txn attach nonsense 2> message; echo "nonsense: $?"
        amino txn begin | tr 0-9a-f x
        i=1; while [ $i -lt 64 ]; do amino txn begin > /dev/null || echo "not begun: $i"; i=$((i + 1)); done
        amino txn begin 2> message; echo "too deep: $? $(grep -c 'nested 64 deep' message)"
        amino txn status | grep -c '^  depth'
        i=0; while [ $i -lt 64 ]; do amino txn commit || echo "not committed: $i"; i=$((i + 1)); done
        amino txn status; rm message
        amino -q txn run -- sh -c 'echo zero > zero'; echo "zero: $?"
        amino -q txn run -- sh -c 'echo three > three; exit 3'; echo "three: $?"
        amino -q txn run -- sh -c 'echo term > term; kill -TERM $$'; echo "term: $?"
        amino -q txn run -- sh -c 'echo kill > kill; kill -KILL $$'; echo "kill: $?"
        amino -q txn run -- ./nonexistent 2> message; echo "nonexistent: $?"; rm message
        amino -q txn run -- sh -c 'amino txn begin > /dev/null; echo open > open'; echo "left open: $?"
        amino txn begin > /dev/null
        amino -q txn run -- sh -c 'echo x > nested; exit 1'; amino -q txn run -- sh -c 'echo x > nested2'
        amino txn abort; echo *
        rm -f message; (amino txn begin > /dev/null; echo x > sub; cat sub); test ! -e sub
        # A shell executes the last command in its own place.
        sh -c 'amino txn begin > /dev/null; echo last > last; amino txn commit'; cat last
        bash -c 'amino txn begin > /dev/null; rm last; amino txn abort'; cat last
        amino txn begin > /dev/null; sh -c 'amino txn begin > /dev/null; echo inner > last; amino txn commit'
        cat last; amino txn abort; cat last; sh -c 'amino txn begin > /dev/null; amino txn status' | grep -c depth
        amino txn begin > /dev/null; echo committed > last; amino txn commit"#;
    let ended = run_in(place, "sh", text);
    let expected = "commit: 1 1 1\nabort: 1 1 1\nsuspend: 1 1 1\ndetach: 1 1 1\n\
        resume 0123456789abcdef0123456789abcdef: 1 1 1\nattach 0123456789abcdef0123456789abcdef: 1 1 1\nnonsense: 125\n\
        xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\ntoo deep: 1 1\n64\nno current transaction\n\
        zero: 0\nthree: 3\nterm: 143\nkill: 137\nnonexistent: 127\nleft open: 0\nzero\nx\nlast\nlast\ninner\nlast\n1\n";
    assert_eq!(ended.text(), expected, "{}", ended.errors());
    assert_eq!(script(place, "cat last"), "committed\n");
}

fn programs_written_inside(place: &Place) {
    let text = r#"printf '#!/bin/sh\necho old\n' > tool; chmod +x tool
        mkfifo go; (read x < go; ./tool > outside) & outside=$!
        amino txn begin > /dev/null
        printf '#!/bin/sh\necho new "$1"\n' > tool; cp $(type -P echo) program; printf 'echo sourced' > lib.sh
        ./tool arg; ./program copied; . ./lib.sh; sh ./tool by-name; python3 -c 'open("m.py", "w").write("x = 5\n")'
        python3 -c 'import sys; sys.path.insert(0, "."); sys.dont_write_bytecode = True; import m; print(m.x)'
        (cd /; env PATH="$OLDPWD:$PATH" tool found)
        amino txn abort
        ./tool; test ! -e program -a ! -e lib.sh -a ! -e m.py
        echo > go; wait $outside; cat outside
        amino txn begin > /dev/null; cp $(type -P echo) program; amino txn commit; ./program committed"#;
    let expected = "new arg\ncopied\nsourced\nnew by-name\n5\nnew found\nold\nold\ncommitted\n";
    assert_eq!(script(place, text), expected);
}

fn what_the_dead_began_is_undone(place: &Place) {
    let text = r#"echo before > f
        for signal in KILL TERM SEGV; do
          bash -c "amino txn begin > /dev/null; echo x > f; mkdir d; (amino txn begin > /dev/null; rm f; kill -$signal \$\$; exec sleep 0.1)" 2> /dev/null || true
          sleep 0.3; cat f; test ! -e d
        done
        amino txn begin > /dev/null; sh -c 'echo child > f; kill -9 $$' 2> /dev/null || true; cat f; amino txn abort
        # A child that stays goes on in it, and its end is the transaction's.
        mkfifo ready; bash -c 'amino txn begin > /dev/null; echo x > f; { read x < ready; echo heir >> f; amino txn commit; echo done > ready; } &'
        cat f; echo > ready; read x < ready; cat f
        bash -c 'amino txn begin > /dev/null; echo x > f; sleep 0.4 &'
        cat f; SECONDS=0; echo waited >> f; test $SECONDS -le 5; cat f"#;
    let expected = "before\nbefore\nbefore\nchild\nbefore\nx\nheir\nx\nheir\nx\nheir\nwaited\n";
    let ended = run_in(place, "bash", text);
    assert_eq!(ended.text(), expected, "{}", ended.errors());
}

fn transactions_go_from_shell_to_shell(place: &Place) {
    // Shells look at the directory they start in, and so does their transaction: what is outside writes elsewhere.
    let text = r#"mkdir other
        id=$(amino txn begin); echo owner > part1
        sh -c 'amino txn detach; test ! -e part1; amino txn attach $1; cat part1; echo helper > part2; amino txn detach; test ! -e part2' sh $id
        cat part2; amino txn status --json | grep -q "\"id\":\"$id\",\"depth\":1,"
        test $(amino txn suspend) = $id; test ! -e part1 -a ! -e part2; echo outside > other/out
        amino txn status | grep -c suspended; amino txn resume $id; cat part1 other/out
        sh -c 'amino txn commit'; cat part1 part2
        if amino txn commit 2> message; then echo committed twice; fi; rm message
        # Both of two shells write to it at the same time.
        id=$(amino txn begin)
        for n in 1 2 3 4; do (for i in $(seq 20); do echo $n.$i >> log; echo $n > file$n.$i; done) & done; wait
        wc -l < log; ls file* | wc -l
        amino txn abort; ls"#;
    let expected = "owner\nhelper\n1\nowner\noutside\nowner\nhelper\n80\n80\nother\npart1\npart2\n";
    assert_eq!(script(place, text), expected);
}

fn parallel_children(place: &Place) {
    let text = r#"mkdir src; for d in 1 2 3; do mkdir -p src/d$d/e; for i in $(seq 20); do echo "$d $i" > src/d$d/f$i; done; done
        for d in 1 2 3; do seq 20000 > src/d$d/e/big; ln -s ../f1 src/d$d/e/l; ln src/d$d/f1 src/d$d/hard; done
        for d in 1 2 3; do tar cf t$d.tar src; done
        for end in abort commit; do
          amino txn begin > /dev/null
          for d in 1 2 3; do (mkdir x$d; tar xf t$d.tar -C x$d) & done; wait
          for d in 1 2 3; do diff -r src x$d/src; done
          amino txn $end; ls -d x* 2> /dev/null | wc -l
        done
        for d in 1 2 3; do diff -r src x$d/src; done; rm -r src x? t?.tar
        mkdir proj; cd proj; for i in 1 2 3 4; do echo "int g$i(int x) { return x + $i; }" > g$i.c; done; echo 'int main(void) { return 0; }' > main.c
        printf 'OBJ = main.o g1.o g2.o g3.o g4.o\nprog: $(OBJ)\n\tcc -o $@ $(OBJ)\n' > Makefile
        amino txn begin > /dev/null; make -s -j4; ./prog; make -q && echo up to date; amino txn abort; ls | wc -l
        amino txn run -- make -s -j4; ./prog; make -q && echo up to date"#;
    assert_eq!(script(place, text), "0\n3\nup to date\n6\nup to date\n");
}

fn copies_wait_for_a_lock_and_lose_nothing(place: &Place) {
    let copies = program("locked_copies", &place.path("."), false);
    let (copies, host) = (copies.display(), place.path("host"));
    let script = format!(
        r#"H={}; mkfifo $H/locked $H/go; printf 0123456789abcdef >$H/source; echo first >f
        export H
        amino txn run -- bash -c 'echo second >f; echo >$H/locked; read <$H/go' &
        read <$H/locked
        (sleep 0.3; echo >$H/go) &
        {copies} f $H/source
        wait
        cat f"#,
        host.display()
    );
    let text = run_in(place, "bash", &script).expect(0).text();
    let expected = "splice 7 \nsendfile 7 \ncopy 7 \nspliced0123456789abcd";
    assert_eq!(text, expected);
}
