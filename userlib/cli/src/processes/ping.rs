//! `netvm ping`: writes, reads back and checks.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::spread::Spread;
use super::{Client, wrong};
use crate::args::Ping;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Answer<'a> {
    name: &'a str,
    node: u16,
    size: u32,
    count: u32,
    microseconds: Spread,
}

/// Runs it.
///
/// # Errors
/// There is no such server, a byte is wrong, or the link ends.
pub fn run(options: &Ping) -> Result<(), Failure> {
    let client = Client::connect(&options.name, &options.options)?;
    let mut back = vec![0; options.size as usize];
    let mut times = Vec::new();
    for round in 0..options.count {
        let sent: Vec<u8> = (0..options.size)
            .map(|at| (at.wrapping_mul(31) ^ round.wrapping_mul(0x9E37)) as u8)
            .collect();
        let begin = Instant::now();
        client
            .remote
            .write(client.part, &sent[..])
            .post()
            .map_err(wrong)?;
        let read = client.remote.read(client.part, &mut back[..]);
        read.ordered().call().map_err(wrong)?;
        let time = begin.elapsed();
        times.push(time);
        if let Some(at) = (0..sent.len()).find(|at| sent.get(*at) != back.get(*at)) {
            return Err(Failure::Wrong(format!(
                "round {}: byte {at} came back wrong",
                round + 1
            )));
        }
        if !options.json {
            output::print(&format!(
                "{} bytes to '{}' (node {}) and back: {:.2} us\n",
                options.size,
                options.name,
                client.peer,
                time.as_nanos() as f64 / 1000.0
            ))?;
        }
        if round + 1 < options.count {
            std::thread::sleep(Duration::from_millis(options.interval));
        }
    }
    let spread = Spread::of(times);
    if options.json {
        return output::print_json(&Answer {
            name: &options.name,
            node: client.peer.0,
            size: options.size,
            count: options.count,
            microseconds: spread,
        });
    }
    output::print(&format!(
        "every byte was right; least {:.2}, median {:.2}, most {:.2} us\n",
        spread.least, spread.median, spread.most
    ))
}
