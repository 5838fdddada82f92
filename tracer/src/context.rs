//! The pairs of the context block that describe the machine.

use std::path::Path;

use amino_schema::trace::pairs::Pairs;
use rustix::system::uname;
use rustix::time::{ClockId, clock_gettime};

/// Maximum number of lines of mounts that are recorded.
const MAX_MOUNTS: usize = 4096;

/// Names and values that are known without the command: program, machine, kernel, clocks, mounts.
pub fn of_machine() -> Pairs {
    let mut pairs = Pairs::new();
    let mut put = |name: &str, value: &[u8]| pairs.push((name.to_owned(), value.to_vec()));
    put(
        "program",
        concat!("goanna-trace ", env!("CARGO_PKG_VERSION")).as_bytes(),
    );
    let system = uname();
    put("machine", system.machine().to_bytes());
    put("kernel", system.release().to_bytes());
    put("host", system.nodename().to_bytes());
    if let Ok(boot) = std::fs::read("/proc/sys/kernel/random/boot_id") {
        put("boot", boot.trim_ascii());
    }
    if let Ok(cpus) = std::thread::available_parallelism() {
        put("cpus", cpus.to_string().as_bytes());
    }
    let info = rustix::system::sysinfo();
    let memory = info.totalram as u128 * u128::from(info.mem_unit.max(1));
    put("memory", memory.to_string().as_bytes());
    put(
        "clock",
        nanoseconds(ClockId::Realtime).to_string().as_bytes(),
    );
    put(
        "clock.monotonic",
        nanoseconds(ClockId::Monotonic).to_string().as_bytes(),
    );
    if let Ok(mounts) = std::fs::read(Path::new("/proc/self/mountinfo")) {
        for line in mounts.split(|&byte| byte == b'\n').take(MAX_MOUNTS) {
            if !line.is_empty() {
                put("mount", line);
            }
        }
    }
    pairs
}

fn nanoseconds(clock: ClockId) -> i128 {
    let now = clock_gettime(clock);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}
