//! The measurement alone, for those who change it: `cargo run --release -p netvm-bench-calls --example calls -- quick`.

use netvm_bench_calls::{Sizes, measure, serve};
use std::process::Command;

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, role, name] = &args[..]
        && role == "--callee"
    {
        return serve(name);
    }
    let sizes = if args.iter().any(|arg| arg == "quick") {
        Sizes::QUICK
    } else {
        Sizes::WHOLE
    };
    let name = format!("calls-{}", std::process::id());
    let mut other = Command::new(&args[0]);
    other.args(["--callee", &name]);
    let measured = measure(&sizes, &name, &mut other)?;
    println!("{measured:#?}");
    Ok(())
}
