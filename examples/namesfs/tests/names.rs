//! Programs see names, the lower directory holds their encodings.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::Command;

#[test]
fn names_are_encoded_below_and_plain_above() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("not hex"), "hidden").unwrap();
    let script = r"cd /names && echo text > file && mkdir -p d/e && mv file d/e/moved && ln d/e/moved hard && ln -s d/e/moved link && mkfifo p &&
        cat link && ls -R && cd d/e && pwd -P && ls /proc/self/cwd && cd ../.. && rm p && rmdir d 2>&1 | grep -o 'not empty';
        n=$(printf 'n%.0s' $(seq 127)); touch $n && rm $n && touch ${n}n 2>&1 | grep -o 'too long'; cp link copy; python3 -c '
import os
fd = os.open(`copy`, os.O_RDWR); os.pwrite(fd, b`T`, 0); print(os.pread(fd, 4, 0).decode()); os.ftruncate(fd, 2)
print(os.stat(`copy`).st_size, os.statvfs(`.`).f_namemax)'".replace('`', "\"");
    let ended = Command::new(env!("CARGO_BIN_EXE_namesfs"))
        .arg(dir.path())
        .args(["/names", "sh", "-c", &script])
        .output()
        .unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    let expected = "text\n.:\nd\nhard\nlink\np\n\n./d:\ne\n\n./d/e:\nmoved\n/names/d/e\nmoved\nnot empty\ntoo long\nText\n2 127\n";
    assert_eq!(text, expected, "{}", String::from_utf8_lossy(&ended.stderr));
    let mut below: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    below.sort();
    // copy, d, hard, link
    assert_eq!(below, ["636f7079", "64", "68617264", "6c696e6b", "not hex"]);
    assert_eq!(
        fs::read(dir.path().join("64/65/6d6f766564")).unwrap(),
        b"text\n"
    );
}
