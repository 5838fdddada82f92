//! Access control lists by the programs that people use for them, into a store and out of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use goanna_tests::{Backend, Engine, Intercept, Place, User, finish};

/// Makes a tree with lists in `$1`.
const MAKE: &str = r"
mkdir -p $1/dir/sub $1/plain; echo text > $1/dir/file; echo more > $1/dir/sub/file; echo none > $1/plain/file
mkfifo $1/plain/fifo; ln -s file $1/plain/link; ln $1/dir/file $1/plain/hard
setfacl -m u:2001:rw,g:3001:x,m::r $1/dir/file; setfacl -m u:2002:- $1/plain/fifo
setfacl -d -m u:2001:rwx,g:3001:r $1/dir/sub; setfacl -m g:3002:rwx $1/dir/sub
mkdir $1/dir/sub/inherits; echo text > $1/dir/sub/inherits/file; chmod 2750 $1/plain
";

/// The lists and modes below a directory.
const STATE: &str = "(cd $1; find . ! -type l | sort | xargs getfacl -n)";

fn script(text: &str, arguments: &[&Path]) -> Vec<String> {
    let mut words: Vec<String> = ["bash", "-euc", text, "-"].map(String::from).into();
    words.extend(arguments.iter().map(|path| path.display().to_string()));
    words
}

fn natively(place: &Place, text: &str, directory: &Path) -> String {
    let words = script(text, &[directory]);
    finish(place.native(&words[0]).args(&words[1..]))
        .expect(0)
        .text()
}

/// Copies of all kinds, from the host into the store and back.
fn copies_keep_lists(place: &Place) {
    place.make_dir("host");
    let (from, back) = (place.make_dir("host/from"), place.make_dir("host/back"));
    natively(place, MAKE, &from);
    let expected = natively(place, STATE, &from);
    assert!(expected.contains("user:2001:rw-"), "{expected}");

    // What is copied into a directory with a default list must not inherit it.
    let copy = "cd $1; for how in cp rsync tar; do mkdir $how $3/$how; setfacl -d -m u:2009:rwx $how $3/$how; done
        cp -a $2/. cp; rsync -aAX $2/ rsync/; tar --acls -C $2 -cf - . | tar --acls -C tar -xpf -
        for how in cp rsync tar; do (cd $how; find . ! -type l | sort | xargs getfacl -n > $3/$how.state); done
        cp -a cp/. $3/cp; rsync -aAX rsync/ $3/rsync/; tar --acls -C tar -cf - . | tar --acls -C $3/tar -xpf -";
    let words = script(copy, &[Path::new(place.top()), &from, &back]);
    finish(place.run().args(&words)).expect(0);
    for how in ["cp", "rsync", "tar"] {
        let inside = fs::read_to_string(back.join(format!("{how}.state"))).unwrap();
        assert_eq!(inside, expected, "{how} into the store");
        let outside = natively(place, STATE, &back.join(how));
        assert_eq!(outside, expected, "{how} out of the store");
    }

    // The same by import and export, both into directories with a default list.
    let prepare = "mkdir $1/import; setfacl -d -m u:2009:rwx $1/import";
    let words = script(prepare, &[Path::new(place.top())]);
    finish(place.run().args(&words)).expect(0);
    finish(place.amino_command("import").arg(&from).arg("/import")).expect(0);
    let words = script(STATE, &[&Path::new(place.top()).join("import")]);
    let imported = finish(place.run().args(&words)).expect(0).text();
    assert_eq!(imported, expected, "import");
    natively(place, "setfacl -d -m u:2009:rwx $1", &back);
    finish(
        place
            .amino_command("export")
            .arg("/import")
            .arg(back.join("export")),
    )
    .expect(0);
    assert_eq!(
        natively(place, STATE, &back.join("export")),
        expected,
        "export"
    );

    // A dump has them, too, and an aborted transaction changes none.
    let change = "cd $1; setfacl -R -b import; setfacl -m u:1:r import/plain/file; exit 1";
    let words = script(change, &[Path::new(place.top())]);
    finish(place.run_with(&["--txn"]).args(&words)).expect(1);
    let words = script(STATE, &[&Path::new(place.top()).join("import")]);
    let after = finish(place.run().args(&words)).expect(0).text();
    assert_eq!(after, expected, "an aborted transaction");
    place.fsck();
}

#[test]
fn copies_keep_access_control_lists_in_both_directions() {
    if !["setfacl", "rsync"]
        .into_iter()
        .all(goanna_tests::tools::has)
    {
        return;
    }
    for user in [User::Own, User::Nobody] {
        if user == User::Own || goanna_tests::may_become_another_user() {
            let place = Place::new(Backend::Amino(Engine::Fjall), Intercept::Notify, user);
            copies_keep_lists(&place);
        }
    }
}
