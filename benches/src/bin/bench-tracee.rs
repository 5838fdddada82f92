//! The program that runs in a setting and times calls: `bench-tracee DIRECTORY`.
//!
//! It changes to DIRECTORY, prints `ready`, and answers each line of standard input with one line: the time in
//! nanoseconds, or `error: ` and the reason. A line is `OPERATION ITERATIONS`, or `sh COMMAND` for a shell command.

use std::env;
use std::io::{self, BufRead, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use goanna_benches::Operation;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-tracee: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    let dir = env::args_os()
        .nth(1)
        .ok_or_else(|| io::Error::other("usage: bench-tracee DIRECTORY"))?;
    env::set_current_dir(dir)?;
    let mut answers = io::stdout().lock();
    writeln!(answers, "ready")?;
    answers.flush()?;
    for line in io::stdin().lock().lines() {
        match answer(&line?) {
            Ok(elapsed) => writeln!(answers, "{}", elapsed.as_nanos())?,
            Err(error) => writeln!(answers, "error: {error}")?,
        }
        answers.flush()?;
    }
    Ok(())
}

fn answer(line: &str) -> io::Result<Duration> {
    let (name, argument) = line
        .split_once(' ')
        .ok_or_else(|| io::Error::other("a line is OPERATION ITERATIONS or sh COMMAND"))?;
    if name == "sh" {
        return shell(argument);
    }
    let operation = Operation::named(name).ok_or_else(|| io::Error::other("no such operation"))?;
    let iterations = argument.parse().map_err(io::Error::other)?;
    operation.run(iterations)
}

fn shell(command: &str) -> io::Result<Duration> {
    let start = Instant::now();
    let status = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    let elapsed = start.elapsed();
    if status.success() {
        Ok(elapsed)
    } else {
        Err(io::Error::other(status.to_string()))
    }
}
