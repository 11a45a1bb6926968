//! What a run that failed leaves behind: a file with the seed, the command that plays it again, the whole trace, and the counters.

use crate::report::Failure;
use crate::trace::{Lines, TraceSink};
use std::fs::{self, File};
use std::io::{self, BufWriter, LineWriter, Write};
use std::path::{Path, PathBuf};

/// The folder for such files: `failed-runs` in the `target` folder that this program was built into, or else in the
/// machine's folder for temporary files.
#[must_use]
pub fn folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file());
    target.map_or_else(
        || std::env::temp_dir().join("netvm-failed-runs"),
        |target| target.join("failed-runs"),
    )
}

/// Plays a run that failed once more and writes its trace to a file in `folder`, which is made if it is not there. Gives
/// the path.
///
/// `again` plays the run, with the sink that it is given. A run is a function of its seed and configuration, so it fails
/// as it did. A panic of `again` is the caller's to catch, inside of it; the trace up to there is kept.
///
/// # Errors
/// What the file system says.
pub fn leave(
    folder: &Path,
    failure: &Failure,
    again: impl FnOnce(&mut dyn TraceSink),
) -> io::Result<PathBuf> {
    let path = path(folder, failure);
    fs::create_dir_all(folder)?;
    let mut out = BufWriter::new(File::create(&path)?);
    head(&mut out, failure)?;
    writeln!(out, "trace, in nanoseconds since the start:")?;
    trace(&mut out, again)?;
    match failure.promise {
        Some(promise) => writeln!(out, "{promise} broken: {}", failure.what)?,
        None => writeln!(out, "{}", failure.what)?,
    }
    writeln!(out, "counters, sums over all nodes:")?;
    for (name, count) in failure.counters.iter().filter(|(_, count)| **count > 0) {
        writeln!(out, "{name} {count}")?;
    }
    out.flush()?;
    Ok(path)
}

/// The same for a run that hangs. What is known of it stands before its trace, and each line is written as it comes:
/// `again` hangs as the run did.
///
/// # Errors
/// As [`leave`].
pub fn leave_hanging(
    folder: &Path,
    failure: &Failure,
    again: impl FnOnce(&mut dyn TraceSink),
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut out = LineWriter::new(File::create(path(folder, failure))?);
    head(&mut out, failure)?;
    writeln!(out, "{}", failure.what)?;
    writeln!(
        out,
        "trace up to the step that does not end, in nanoseconds since the start:"
    )?;
    trace(&mut out, again)
}

/// The file of a run in `folder`.
#[must_use]
pub fn path(folder: &Path, failure: &Failure) -> PathBuf {
    folder.join(match &failure.point {
        Some(point) => format!("point-{}.txt", point.replace(':', "-")),
        None => format!("seed-{}-nodes-{}.txt", failure.seed, failure.nodes),
    })
}

fn trace(out: &mut impl Write, again: impl FnOnce(&mut dyn TraceSink)) -> io::Result<()> {
    let mut lost = None;
    again(&mut Lines(|line: &str| {
        if lost.is_none() {
            lost = writeln!(out, "{line}").err();
        }
    }));
    lost.map_or(Ok(()), Err)
}

fn head(out: &mut impl Write, failure: &Failure) -> io::Result<()> {
    match &failure.point {
        Some(point) => writeln!(out, "{point} failed")?,
        None => writeln!(out, "seed {} with {} nodes failed", failure.seed, failure.nodes)?,
    }
    writeln!(out, "replay: {}", failure.replay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, NoTrace, run_seed};
    use netvm_abi::Nanos;
    use std::collections::BTreeMap;

    #[test]
    fn a_failed_run_leaves_its_seed_replay_and_whole_trace() {
        // Nothing finishes so soon after the faults have stopped.
        let config = Config {
            patience: Nanos(1),
            messages: 300,
            ..Config::default()
        };
        let failure = run_seed(3, &config, &mut NoTrace).expect_err("a patience of a nanosecond");
        let folder = std::env::temp_dir().join(format!("netvm-evidence-{}", std::process::id()));
        let path = leave(&folder, &failure, |sink| {
            let again = run_seed(3, &config, sink).expect_err("it fails again");
            assert_eq!(again.what, failure.what);
        })
        .expect("a file");
        let text = fs::read_to_string(&path).expect("the file");
        fs::remove_dir_all(&folder).expect("the folder goes");
        assert!(text.contains("seed 3 with 4 nodes failed") && text.contains(&failure.replay));
        let (_, counters) = text
            .split_once(&format!("{}\ncounters", failure.what))
            .expect("the counters stand behind what was wrong");
        assert!(counters.contains(&format!(
            "\nmessages_sent {}\n",
            failure.counters["messages_sent"]
        )));
        let last = failure.last_events.last().expect("events");
        assert!(text.contains(last.as_str()), "the trace ends where the run did");
        assert!(
            text.lines().count() > failure.last_events.len(),
            "and has all of it"
        );
    }

    #[test]
    fn what_hangs_leaves_its_trace_before_it_ends() {
        let failure = Failure {
            what: "hangs".to_owned(),
            ..unwritten()
        };
        let folder = std::env::temp_dir().join(format!("netvm-hangs-{}", std::process::id()));
        let file = path(&folder, &failure);
        leave_hanging(&folder, &failure, |sink| {
            sink.line("the last line");
            let text = fs::read_to_string(&file).expect("the file");
            assert!(
                text.contains("replay: play\nhangs\n") && text.ends_with("\nthe last line\n"),
                "{text}"
            );
        })
        .expect("a file");
        fs::remove_dir_all(&folder).expect("the folder goes");
    }

    fn unwritten() -> Failure {
        Failure {
            seed: 1,
            nodes: 2,
            point: None,
            promise: None,
            what: "x".to_owned(),
            virtual_nanos: 0,
            last_events: Vec::new(),
            counters: BTreeMap::new(),
            replay: "play".to_owned(),
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let failure = unwritten();
        assert!(leave(Path::new("/dev/null/x"), &failure, |_| {}).is_err());
    }

    #[test]
    fn a_program_of_the_target_folder_leaves_it_there() {
        let (folder, program) = (folder(), std::env::current_exe().unwrap());
        assert!(folder.ends_with("failed-runs") || folder.starts_with(std::env::temp_dir()));
        assert!(
            folder.parent().is_some_and(|target| program.starts_with(target))
                || folder.starts_with(std::env::temp_dir())
        );
    }
}
