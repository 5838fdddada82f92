//! An encrypted directory inside a store: `amino run --mount aes=/amino/vault:/secret`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use goanna_tests::held::Held;
use goanna_tests::{
    Ended, Facility, Place, binary, differences, finish, program, skip, tools::has,
};
use rustix::process::{Pid, Signal, kill_process};

/// A store with an empty volume in it.
struct Vault {
    place: Place,
    spec: String,
}

impl Vault {
    fn new() -> Self {
        let place = Place::amino();
        place.make_dir("host");
        let password = place.path("password");
        fs::write(&password, "secret\n").unwrap();
        let password = password.to_str().unwrap();
        let vault = format!("{}/vault", place.top());
        let goanna = binary("goanna");
        let init = format!(
            "mkdir {vault} && {} aes init --scrypt-n 10 --passfile {password} {vault}",
            goanna.display()
        );
        finish(&mut place.shell(&init)).expect(0);
        let spec = format!("aes={vault}:/secret,passfile={password}");
        Self { place, spec }
    }

    /// Runs a script in the volume.
    fn run(&self, options: &[&str], script: &str) -> Ended {
        let options = [options, &["--mount", &self.spec]].concat();
        let script = format!("cd /secret && {script}");
        finish(
            self.place
                .run_with(&options)
                .args(["/bin/bash", "-c", &script]),
        )
    }

    /// What is in the volume, with contents.
    fn listed(&self) -> String {
        let list =
            "find . -printf '%P %y %m %n %l\\n' | sort; find . -type f | sort | xargs -r md5sum";
        self.run(&[], list).expect(0).text()
    }

    /// Both programs find nothing wrong.
    fn check(&self) {
        let fsck = format!(
            "{} aes fsck --passfile {} vault",
            binary("goanna").display(),
            self.place.path("password").display()
        );
        finish(&mut self.place.shell(&fsck)).expect(0);
        self.place.fsck();
        if !has("gocryptfs") {
            return skip(Facility::Program, "gocryptfs checks the volume");
        }
        let out = self.place.path("out");
        let mut export = self.place.amino_command("export");
        finish(export.arg("/vault").arg(&out)).expect(0);
        let mut fsck = self.place.native("gocryptfs");
        fsck.args(["-q", "-fsck", "-passfile"]);
        finish(fsck.arg(self.place.path("password")).arg(&out)).expect(0);
        fs::remove_dir_all(out).unwrap();
    }
}

const MAKE: &str = r#"
mkdir -p d/e && echo first > f && head -c 300000 /dev/zero | tr '\0' x > d/large && truncate -s 1M d/sparse &&
echo long > "$(printf 'n%.0s' $(seq 255))" && ln f hard && ln -s f link && chmod 600 hard && setfattr -n user.a -v 1 f"#;

const CHANGE: &str = r#"
echo more >> f && rm d/large && mv d/e e && mkdir -p "$(printf 'D%.0s' $(seq 200))/x" && rm -- n* && ln -sf d link && truncate -s 5 d/sparse &&
printf y | dd of=d/sparse bs=1 seek=100000 conv=notrunc status=none"#;

#[test]
fn a_volume_in_a_store_is_one_of_gocryptfs() {
    let vault = Vault::new();
    vault.run(&[], MAKE).expect(0);
    let listed = vault.listed();
    vault.check();
    vault.run(&[], CHANGE).expect(0);
    assert_ne!(vault.listed(), listed);
    vault.check();
    // The store has no plain name, and no plain content.
    let find = format!(
        "cd vault && ! find . | grep -E '^./(f|d|hard)$' && ! grep -r first . && ls {}",
        vault.place.top()
    );
    assert_eq!(
        finish(&mut vault.place.shell(&find)).expect(0).text(),
        "vault\n"
    );
}

#[test]
fn a_transaction_of_the_run_covers_the_volume() {
    let vault = Vault::new();
    vault.run(&[], MAKE).expect(0);
    let before = vault.listed();
    let aborted = vault
        .run(&["--txn"], &format!("{CHANGE} && cat f && exit 3"))
        .expect(3);
    assert_eq!(aborted.text(), "first\nmore\n");
    assert!(
        !aborted.errors().contains("outside of the store"),
        "{}",
        aborted.errors()
    );
    assert_eq!(vault.listed(), before);
    vault.check();
    let listed =
        "find . -printf '%P %y %m %n %l\\n' | sort; find . -type f | sort | xargs -r md5sum";
    let inside = vault
        .run(&["--txn"], &format!("{CHANGE} && {{ {listed}; }}"))
        .expect(0);
    assert_eq!(vault.listed(), inside.text());
    vault.check();
}

/// The launcher, or the process that owns the store, is killed within the transaction of the run.
#[test]
fn a_kill_takes_back_the_transaction() {
    for kills_owner in [false, true] {
        let vault = Vault::new();
        vault.run(&[], MAKE).expect(0);
        let before = vault.listed();
        let script = format!("cd /secret; {CHANGE} && %GO%");
        let options = ["--txn", "--mount", &vault.spec];
        let held = Held::new(&vault.place, "killed", &options, &script);
        let launcher = i32::try_from(held.id()).unwrap();
        let owner = vault.place.owner().map(|(pid, _)| pid);
        let killed = if kills_owner { owner } else { Some(launcher) };
        let killed = killed.and_then(Pid::from_raw).unwrap();
        kill_process(killed, Signal::KILL).unwrap();
        drop(held);
        assert_eq!(vault.listed(), before);
        vault.check();
    }
}

/// Nothing tells the monitor of a write through a mapping: it is found at the commit.
#[test]
fn a_transaction_of_the_run_covers_mappings() {
    if !has("python3") {
        return skip(Facility::Program, "python3 maps a file");
    }
    let vault = Vault::new();
    vault.run(&[], "head -c 10000 /dev/zero > f").expect(0);
    let map = |letter: char, status: i32| {
        let script = format!(
            "python3 -c \"import mmap, os; f = open('f', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[5000] = ord('{letter}'); \
             os._exit({status})\""
        );
        vault.run(&["--txn"], &script).expect(status);
        vault.run(&[], "tr -d '\\0' < f").expect(0).text()
    };
    assert_eq!(map('a', 3), "");
    assert_eq!(map('b', 0), "b");
    vault.check();
}

/// A file has one decrypted content, so a transaction of a part of the run could not have its own.
#[test]
fn explicit_transactions_are_refused() {
    let vault = Vault::new();
    vault.run(&[], "echo first > f").expect(0);
    let amino = binary("amino");
    let inside = format!(
        "{} txn run -- cat f; {} txn run -- touch g; cat f; ls",
        amino.display(),
        amino.display()
    );
    let ended = vault.run(&[], &inside).expect(0);
    assert_eq!(ended.text(), "first\nf\n");
    assert_eq!(
        ended.errors().matches("Operation not supported").count(),
        2,
        "{}",
        ended.errors()
    );
    vault.check();
}

/// Programs find no difference but those that stores and encrypted directories have anyway.
#[test]
fn programs_answer_as_natively() {
    const NAMES: [&str; 9] = [
        "rw", "mmap", "dirs", "copy", "cwd", "attr", "stat", "ranges", "msync",
    ];
    for name in NAMES {
        for options in [&[][..], &["--txn"]] {
            let vault = Vault::new();
            let program = program(name, &vault.place.path("."), false);
            let (native, host) = (vault.place.make_dir("native"), vault.place.make_dir("host"));
            let expected = finish(vault.place.native(&program).arg(native).arg(&host)).expect(0);
            vault.place.make_dir("host");
            let options = [options, &["--mount", &vault.spec]].concat();
            let mut run = vault.place.run_with(&options);
            let ended = finish(run.arg(&program).arg("/secret").arg(&host));
            let found = differences(&expected.text(), &ended.text());
            assert!(
                found.is_empty() && ended.status == 0,
                "{name} {options:?}:\n{found}\n{}",
                ended.errors()
            );
            vault.check();
        }
    }
}
