//! Without a monitor, as in these tests, every call fails with `NotUnderAmino`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use amino_client::{Error, Id, Target, Transaction, transaction};

#[test]
fn every_call_says_that_there_is_no_monitor() {
    let id: Id = "0123456789abcdef0123456789abcdef".parse().unwrap();
    let no = Error::NotUnderAmino;
    for target in [Target::Me, Target::Process(1)] {
        assert_eq!(target.begin(), Err(no.clone()));
        assert_eq!(target.commit(), Err(no.clone()));
        assert_eq!(target.abort(), Err(no.clone()));
        assert_eq!(target.status(), Err(no.clone()));
        assert_eq!(target.suspend(), Err(no.clone()));
        assert_eq!(target.resume(&id), Err(no.clone()));
        assert_eq!(target.attach(&id), Err(no.clone()));
        assert_eq!(target.detach(), Err(no.clone()));
    }
    assert_eq!(amino_client::begin(), Err(no.clone()));
    assert_eq!(Transaction::begin().unwrap_err(), no);
    assert_eq!(no.to_string(), "not running under amino");
}

#[test]
fn work_is_not_done_without_a_transaction() {
    let outcome: Result<(), Error> = transaction(3, || panic!("no transaction protects this"));
    assert_eq!(outcome, Err(Error::NotUnderAmino));
}
