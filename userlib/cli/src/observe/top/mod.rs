//! `netvm top`: a live view of every node.
//!
//! | file | what it is |
//! |---|---|
//! | [`seen`] | two looks at the cards, and what they tell together |
//! | [`lists`] | the columns; everything as plain text |
//! | [`view`] | what is chosen, and what keys do |
//! | [`screen`] | how that looks |

mod lists;
mod screen;
mod seen;
mod view;

use std::io::{self, IsTerminal};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use serde_json::{Value, json};

use super::{Card, all_or_one, cards, found};
use crate::args::{Top, Which};
use crate::failure::Failure;
use crate::output;
use crate::signals;
use seen::{Look, Seen};
use view::View;

/// How long the view waits for a key before it looks whether something else has come.
const TICK: Duration = Duration::from_millis(50);

/// Runs it.
///
/// # Errors
/// There is no terminal, no card, or none that can be asked.
pub fn run(options: &Top) -> Result<(), Failure> {
    if options.once || options.json {
        return print(options);
    }
    if !io::stdout().is_terminal() {
        return Err(no_terminal("standard output is no terminal"));
    }
    // A node that was asked for is there; without one by name, the view waits for the first.
    if options.which.node.is_some() {
        cards(&options.which)?;
    } else {
        found(&options.which)?;
    }
    live(options)
}

fn no_terminal(what: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!(
        "{what}: `netvm top --once` prints the view once as plain text, `netvm stat --watch` goes on"
    ))
}

/// Prints what there is, and how much a second has been done for an interval: once, or as a line of JSON again and again.
fn print(options: &Top) -> Result<(), Failure> {
    let mut last = Look::at(cards(&options.which)?);
    loop {
        std::thread::sleep(options.interval);
        let now = Look::at(found(&options.which)?);
        let seen = Seen::between(Some(&last), &now);
        if options.json {
            let all: Vec<Value> = seen.iter().map(Seen::json).collect();
            let mut line = all_or_one(&options.which, all);
            if let Value::Object(fields) = &mut line {
                fields.insert("seconds".into(), json!(now.since(&last).as_secs_f64()));
            }
            output::print_json(&line)?;
        } else if seen.is_empty() {
            // All have ended meanwhile.
            cards(&options.which)?;
        } else {
            output::print(&lists::text(&seen))?;
        }
        if options.once {
            return Ok(());
        }
        last = now;
    }
}

/// The terminal as the view has it. Dropped, it is as it was, cursor included; a panic restores it by a hook.
struct Screen(DefaultTerminal);

impl Screen {
    fn new() -> io::Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(terminal)),
            Err(error) => {
                // A part of it may have been done.
                let _ = ratatui::try_restore();
                Err(error)
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone away needs nothing.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

fn live(options: &Top) -> Result<(), Failure> {
    // Ctrl-C is a key here; another process may still send its signal. The second one ends it at once: the terminal may take no
    // output any more.
    let ended = signals::told()?;
    let looks = look_again_and_again(&options.which, options.interval)?;
    let mut screen =
        Screen::new().map_err(|error| no_terminal(format!("the terminal cannot be used: {error}")))?;
    let mut view = View::new(options.interval);
    let ends = |error: io::Error| no_terminal(format!("the terminal cannot be used any more: {error}"));
    while !ended.load(Ordering::Acquire) {
        match newest(&looks) {
            Ok(Some(look)) => view.take(look),
            Ok(None) => {}
            Err(failure) => return Err(failure),
        }
        screen.0.draw(|frame| screen::draw(frame, &view)).map_err(ends)?;
        let again = match event::poll(TICK).map_err(ends)? {
            true => match event::read().map_err(ends)? {
                Event::Key(key) => view.key(key),
                _ => true,
            },
            false => true,
        };
        if !again {
            break;
        }
    }
    Ok(())
}

/// Looks at the cards each interval, beside the view: one that does not answer stops no key. Ends when the receiver is dropped.
fn look_again_and_again(
    which: &Which,
    interval: Duration,
) -> Result<Receiver<Result<Look, Failure>>, Failure> {
    let (send, looks) = mpsc::channel();
    let which = which.clone();
    let look = move || {
        loop {
            let begin = Instant::now();
            let look = found(&which).map(|cards: Vec<Card>| Look::at(cards));
            if send.send(look).is_err() {
                return;
            }
            std::thread::sleep(interval.saturating_sub(begin.elapsed()));
        }
    };
    let spawned = std::thread::Builder::new().name("netvm-looks".into()).spawn(look);
    spawned.map_err(|error| Failure::Wrong(format!("a thread: {error}")))?;
    Ok(looks)
}

/// The last look that has come, if one has.
fn newest(looks: &Receiver<Result<Look, Failure>>) -> Result<Option<Look>, Failure> {
    let mut newest = None;
    loop {
        match looks.try_recv() {
            Ok(look) => newest = Some(look?),
            Err(TryRecvError::Empty) => return Ok(newest),
            Err(TryRecvError::Disconnected) => {
                return Err(Failure::Wrong(
                    "the thread that looks at the cards has ended".into(),
                ));
            }
        }
    }
}
