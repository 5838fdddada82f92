//! Reads ISO images through `goanna run --mount iso=`, through fuseiso and as a native tree, and prints seconds and ratios.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use goanna_benches::{Binaries, Error, Page};
use goanna_manual::HELP_COLUMNS;
use serde_json::json;

/// Read ISO images through goanna, through fuseiso and as a native tree, and print seconds and ratios
///
/// Two images are made below DIR with genisoimage -R -J, and used again by the next run: 628 files of about 1 MB, and
/// 100,000 small files. Without --cold, image and tree are in the page cache when a round begins. Each measurement is
/// made in a fresh mount (first) and once more in the same one (again); the settings alternate within a round. Making the
/// mount is not counted, starting the shell, find, ls and cat is.
#[derive(Debug, Parser)]
#[command(name = "iso-compare", version, max_term_width = HELP_COLUMNS, after_help = HELP)]
struct Cli {
    /// Where trees and images are made and kept; needs 2 GiB
    #[arg(long, value_name = "DIR", default_value = "/tmp/goanna-iso-compare")]
    dir: PathBuf,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Use a tenth of the files
    #[arg(long)]
    quick: bool,
    /// Empty the page cache before each fresh mount, which only root may do
    #[arg(long)]
    cold: bool,
    /// Print the measurements as JSON instead of the table
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Environment:
  GOANNA_BIN_DIR  where goanna is, if not beside this program

fuseiso, fusermount and genisoimage have to be installed. Where fuseiso crashes again and again there is a - for it.";

/// The measurements, each with its command.
const WORK: [(&str, &str); 4] = [
    ("one ls", "ls -d . > /dev/null"),
    ("find", "find . > /dev/null"),
    ("ls -lR", "ls -lR . > /dev/null"),
    ("read", "find . -type f -print0 | xargs -0 cat > /dev/null"),
];

/// The columns.
const PLACES: [&str; 3] = ["native", "fuseiso", "goanna"];

/// How often fuseiso may fail in the measurements of one kind: if find and cat use it at the same time, it crashes
/// sometimes or always. After that it is left out.
const CRASHES: u32 = 3;

const MOUNT_DEADLINE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("iso-compare: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Error> {
    let this = Path::new("/proc/self/exe");
    let this = fs::read_link(this).map_err(Error::io("read", this))?;
    let binaries = Binaries::beside(&this.with_file_name("bench-tracee"));
    let mut rows = Vec::new();
    for image in images(cli)? {
        for (work, command) in WORK {
            let row = |moment| Row {
                label: format!("{} {work}, {moment}", image.name),
                rounds: Vec::new(),
            };
            let (mut first, mut again) = (row("first"), row("again"));
            let mut crashes = 0;
            for round in 0..cli.rounds as usize {
                if !cli.cold {
                    image.warm_up()?;
                }
                let (mut firsts, mut agains) = ([f64::NAN; 3], [f64::NAN; 3]);
                for turn in 0..PLACES.len() {
                    let place = (turn + round) % PLACES.len();
                    let measured = measure(cli, place, &binaries, &image, command, &mut crashes)?;
                    let Some([once, twice]) = measured else {
                        continue;
                    };
                    if let (Some(first), Some(again)) =
                        (firsts.get_mut(place), agains.get_mut(place))
                    {
                        (*first, *again) = (once, twice);
                    }
                }
                first.rounds.push(firsts);
                again.rounds.push(agains);
            }
            rows.extend([first, again]);
        }
    }
    let text = if cli.json {
        as_json(cli, &rows)
    } else {
        as_table(cli, &rows)
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::io("write", Path::new("standard output")))
}

/// Seconds that `command` takes in a fresh mount, and when it is run once more there; `None` for fuseiso once it has
/// crashed too often.
fn measure(
    cli: &Cli,
    place: usize,
    binaries: &Binaries,
    image: &Image,
    command: &str,
    crashes: &mut u32,
) -> Result<Option<[f64; 2]>, Error> {
    let may_crash = PLACES.get(place) == Some(&"fuseiso");
    while !may_crash || *crashes <= CRASHES {
        let mut reader = Reader::start(place, binaries, image)?;
        if cli.cold {
            empty_page_cache()?;
        }
        let mut took = || Ok(reader.shell(command)?.as_secs_f64());
        match took().and_then(|once| Ok([once, took()?])) {
            Err(error) if may_crash => {
                eprintln!("fuseiso failed: {error}");
                *crashes += 1;
            }
            measured => return measured.map(Some),
        }
    }
    Ok(None)
}

/// Seconds by round and place; NaN where there are none.
struct Row {
    label: String,
    rounds: Vec<[f64; 3]>,
}

impl Row {
    /// The median over the rounds that have a value.
    fn median(&self, of: impl Fn(&[f64; 3]) -> f64) -> f64 {
        let mut values: Vec<f64> = self.rounds.iter().map(of).filter(|v| !v.is_nan()).collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let len = values.len();
        (at(len.saturating_sub(1) / 2) + at(len / 2)) / 2.0
    }

    /// Seconds in each place, and what goanna takes in parts of native and of fuseiso.
    fn figures(&self) -> ([f64; 3], f64, f64) {
        let seconds = [0, 1, 2].map(|place| self.median(|round| round[place]));
        let to_native = self.median(|[native, _, goanna]| goanna / native);
        let to_fuse = self.median(|[_, fuse, goanna]| goanna / fuse);
        (seconds, to_native, to_fuse)
    }
}

fn as_table(cli: &Cli, rows: &[Row]) -> String {
    let mut text = format!(
        "# ISO images\n\n{}\nMedians of {} rounds; a ratio is the median of the ratios within the rounds.\n\n\
         | {:<24} | {:>8} | {:>8} | {:>8} | {:>13} | {:>14} |\n|{:-<26}|{:->9}:|{:->9}:|{:->9}:|{:->14}:|{:->15}:|\n",
        Page::conditions(&cli.dir),
        cli.rounds,
        "Seconds",
        PLACES[0],
        PLACES[1],
        PLACES[2],
        "goanna/native",
        "goanna/fuseiso",
        "",
        "",
        "",
        "",
        "",
        "",
    );
    for row in rows {
        let ([native, fuse, goanna], to_native, to_fuse) = row.figures();
        let shown = |value: f64, digits| match value {
            value if value.is_nan() => "-".to_owned(),
            value => format!("{value:.digits$}"),
        };
        text += &format!(
            "| {:<24} | {:>8} | {:>8} | {:>8} | {:>13} | {:>14} |\n",
            row.label,
            shown(native, 4),
            shown(fuse, 4),
            shown(goanna, 4),
            shown(to_native, 2),
            shown(to_fuse, 2),
        );
    }
    text
}

fn as_json(cli: &Cli, rows: &[Row]) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let ([native, fuse, goanna], to_native, to_fuse) = row.figures();
            json!({
                "work": row.label,
                "seconds": { "native": native, "fuseiso": fuse, "goanna": goanna },
                "goanna_to_native": to_native,
                "goanna_to_fuseiso": to_fuse,
                "rounds": row.rounds,
            })
        })
        .collect();
    let page = json!({
        "conditions": Page::conditions(&cli.dir),
        "places": PLACES,
        "rows": rows,
    });
    format!("{page:#}\n")
}

/// An image and the tree it was made of.
struct Image {
    name: &'static str,
    tree: PathBuf,
    image: PathBuf,
}

impl Image {
    /// Reads the image and the tree, so that neither place reads from the disk.
    fn warm_up(&self) -> Result<(), Error> {
        let mut image = File::open(&self.image).map_err(Error::io("open", &self.image))?;
        io::copy(&mut image, &mut io::sink()).map_err(Error::io("read", &self.image))?;
        let mut cat = Command::new("/bin/sh");
        cat.args([
            "-c",
            "ls -lR . > /dev/null && exec find . -type f -exec cat {} + > /dev/null",
        ]);
        ended_well(cat.current_dir(&self.tree))
    }
}

fn images(cli: &Cli) -> Result<[Image; 2], Error> {
    let scale = if cli.quick { 10 } else { 1 };
    let suffix = if cli.quick { "-quick" } else { "" };
    fs::create_dir_all(&cli.dir).map_err(Error::io("make", &cli.dir))?;
    let image = |name, files: u64, dirs: u64, len: fn(u64) -> u64| {
        let image = Image {
            name,
            tree: cli.dir.join(format!("{name}{suffix}")),
            image: cli.dir.join(format!("{name}{suffix}.iso")),
        };
        if !image.image.exists() {
            make(&image, files / scale, dirs, len)?;
        }
        Ok(image)
    };
    Ok([
        // 0.2 to 1.87 MB, 1.03 MB in the middle.
        image("650MB", 628, 20, |n| 200_000 + n * 7919 % 1_670_000)?,
        image("100,000", 100_000, 100, |n| 20 + n % 200)?,
    ])
}

/// Makes the tree and, of it, the image.
fn make(image: &Image, files: u64, dirs: u64, len: fn(u64) -> u64) -> Result<(), Error> {
    eprintln!("make {}", image.image.display());
    let mut noise = 1_u64;
    for n in 0..files {
        let dir = image.tree.join(format!("dir-{:03}", n % dirs));
        fs::create_dir_all(&dir).map_err(Error::io("make", &dir))?;
        let path = dir.join(format!("file-{n:06}"));
        let file = File::create(&path).map_err(Error::io("make", &path))?;
        let mut file = BufWriter::new(file);
        for _ in 0..len(n).div_ceil(8) {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            file.write_all(&noise.to_le_bytes())
                .map_err(Error::io("write", &path))?;
        }
        file.flush().map_err(Error::io("write", &path))?;
    }
    // It gets its name only when it is complete.
    let part = image.image.with_extension("part");
    let mut genisoimage = Command::new("genisoimage");
    genisoimage.args(["-quiet", "-R", "-J", "-o"]).arg(&part);
    ended_well(genisoimage.arg(&image.tree))?;
    fs::rename(&part, &image.image).map_err(Error::io("rename", &part))
}

fn empty_page_cache() -> Result<(), Error> {
    // Dropping the page cache does not drop dirty pages.
    ended_well(&mut Command::new("sync"))?;
    let control = Path::new("/proc/sys/vm/drop_caches");
    fs::write(control, "3").map_err(Error::io("write", control))
}

fn ended_well(command: &mut Command) -> Result<(), Error> {
    let program = PathBuf::from(command.get_program());
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(Error::io("start", &program))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::io("run", &program)(io::Error::other(
        status.to_string(),
    )))
}

/// `bench-tracee` in one of the [`PLACES`].
struct Reader {
    // Dropped in this order: the program ends before its file system is unmounted.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    child: Child,
    _mount: Option<FuseIso>,
}

impl Reader {
    fn start(place: usize, binaries: &Binaries, image: &Image) -> Result<Self, Error> {
        let mut mount = None;
        let mut command = Command::new(&binaries.tracee);
        match PLACES.get(place).copied() {
            Some("goanna") => {
                let goanna = binaries.goanna.as_deref().ok_or(Error::Missing {
                    kind: "goanna",
                    program: "goanna",
                    advice: "cargo build --release -p goanna-cli, or set GOANNA_BIN_DIR",
                })?;
                let spec = format!("iso={}:/cd", image.image.display());
                command = Command::new(goanna);
                command.args(["run", "--mount", &spec, "--"]);
                command.arg(&binaries.tracee).arg("/cd");
            }
            Some("fuseiso") => {
                let fuse = FuseIso::mount(&image.image)?;
                command.arg(&fuse.at);
                mount = Some(fuse);
            }
            _ => {
                command.arg(&image.tree);
            }
        }
        let program = PathBuf::from(command.get_program());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A crash of fuseiso would be a line for each file.
            .stderr(if place == 1 {
                Stdio::null()
            } else {
                Stdio::inherit()
            })
            .spawn()
            .map_err(Error::io("start", &program))?;
        let failed = |why: &str| Error::io("run", &program)(io::Error::other(why.to_owned()));
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("no pipes"));
        };
        let mut reader = Self {
            requests: Some(requests),
            answers: BufReader::new(answers),
            child,
            _mount: mount,
        };
        match reader.answer()?.as_str() {
            "ready" => Ok(reader),
            other => Err(failed(other)),
        }
    }

    fn answer(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        read.map_err(Error::io("read from", Path::new("bench-tracee")))?;
        Ok(line.trim_end().to_owned())
    }

    /// Runs a shell command of one line in the tree.
    fn shell(&mut self, command: &str) -> Result<Duration, Error> {
        let tracee = Path::new("bench-tracee");
        if let Some(requests) = &mut self.requests {
            writeln!(requests, "sh {command}").map_err(Error::io("write to", tracee))?;
        }
        let answer = self.answer()?;
        let nanos = answer.parse();
        nanos
            .map(Duration::from_nanos)
            .map_err(|_| Error::io("run", Path::new(command))(io::Error::other(answer)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}

/// An image mounted with fuseiso.
struct FuseIso {
    at: PathBuf,
    _dir: tempfile::TempDir,
}

impl FuseIso {
    fn mount(image: &Path) -> Result<Self, Error> {
        let dir = tempfile::tempdir().map_err(Error::io("make", Path::new("a directory")))?;
        let at = dir.path().join("mount");
        fs::create_dir(&at).map_err(Error::io("make", &at))?;
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev());
        let below = device(&at).map_err(Error::io("stat", &at))?;
        ended_well(Command::new("fuseiso").arg(image).arg(&at))?;
        let start = Instant::now();
        while device(&at).map_or(true, |device| device == below) {
            if start.elapsed() > MOUNT_DEADLINE {
                return Err(Error::NoMount {
                    kind: "fuseiso",
                    stderr: String::new(),
                });
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { at, _dir: dir })
    }
}

impl Drop for FuseIso {
    fn drop(&mut self) {
        // The mount stays busy for a moment after the last process has ended.
        for _ in 0..100 {
            if ended_well(Command::new("fusermount").arg("-u").arg(&self.at)).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
