//! `netvm demo`: a file goes from exported memory of node 0 into exported memory of node 1, which may keep only a part
//! of it; every byte is checked twice.
//!
//! | file | what it is |
//! |---|---|
//! | [`source`] | the file |
//! | [`plan`] | what was asked for, checked |
//! | [`sender`] | node 0's application |
//! | [`receiver`] | node 1's application |
//! | [`stage`] | the two nodes and the order of events |
//! | [`processes`] | the same in two processes, each a node of the software card |
//! | [`report`] | what it shows, and whether all of it holds |

mod memcpy;
mod pinned;
mod plan;
mod processes;
mod receiver;
mod report;
mod sender;
mod source;
mod stage;

use crate::args::Demo;
use crate::failure::Failure;
use crate::output;
use plan::Plan;

/// Runs the demo and prints what it shows.
///
/// # Errors
/// [`Failure::Usage`] for a file or size that makes no sense, [`Failure::Unavailable`] where the emulator cannot run,
/// [`Failure::Wrong`] when anything that the demo promises does not hold.
pub fn run(options: &Demo) -> Result<(), Failure> {
    if let Some(sender) = options.receiver_for {
        return processes::receiver::run(options, sender);
    }
    let plan = Plan::new(options)?;
    if !options.json {
        output::print(&plan.headline())?;
    }
    let step = |line: String| match options.json {
        true => Ok(()),
        false => output::print(&format!("  {line}\n")),
    };
    let report = match options.processes {
        true => processes::perform(&plan, options, &step)?,
        false => stage::perform(&plan)?,
    };
    if options.json {
        output::print_json(&report)?;
    } else {
        output::print(&format!("\n{}", report.table()))?;
    }
    if report.ok {
        Ok(())
    } else {
        Err(Failure::Wrong(report.problems.join("; ")))
    }
}
