//! The store of the tutorial as a program: `kv serve`, `kv put`, `kv get`, `kv remove`.

use std::path::Path;
use std::process::ExitCode;

use netvm_guide::store::{BUCKET_BYTES, Client, Server, StoreError};
use netvm_process::{SoftNode, open};

const USAGE: &str = "usage: kv serve NODE FILE MIB    NODE: soft:NAME, or soft://127.0.0.1:4800
       kv put SERVER KEY VALUE  SERVER: NAME, or udp://127.0.0.1:4800
       kv get SERVER KEY
       kv remove SERVER KEY";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", choice, file, mib] => serve(choice, Path::new(file), mib.parse()?),
        ["put", server, key, value] => Ok(connect(server)?.put(key.as_bytes(), value.as_bytes())?),
        ["get", server, key] => match connect(server)?.get(key.as_bytes())? {
            Some(value) => {
                println!("{}", String::from_utf8_lossy(&value));
                Ok(())
            }
            None => Err("there is no such key".into()),
        },
        ["remove", server, key] => Ok(connect(server)?.remove(key.as_bytes())?),
        _ => Err(USAGE.into()),
    }
}

fn connect(server: &str) -> Result<Client, StoreError> {
    // A server by UDP is reached by a node that has UDP, too.
    let choice = if server.starts_with("udp://") {
        "soft://127.0.0.1:0"
    } else {
        "soft"
    };
    let opened = open(choice)?;
    let node: SoftNode = opened.soft().expect("this choice is the software card").clone();
    Client::connect(&node, server)
}

fn serve(choice: &str, file: &Path, mib: u64) -> Result<(), Box<dyn std::error::Error>> {
    let opened = open(choice)?;
    let _server = Server::start(&opened.node(), file, (mib << 20) / BUCKET_BYTES)?;
    println!("serving {} in {mib} MiB", file.display());
    // Clients need nothing of this thread.
    loop {
        std::thread::park();
    }
}
