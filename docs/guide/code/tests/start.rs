//! The two programs of the first chapter, and the commands around them.

mod support;

use std::process::{Command, Stdio};

#[test]
fn the_greeting_arrives() {
    let name = support::name("start");
    let inbox = Command::new(env!("CARGO_BIN_EXE_inbox"))
        .arg(&name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // `greet` waits for the node and for its export.
    let greet = Command::new(env!("CARGO_BIN_EXE_greet"))
        .arg(&name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&greet.stderr);
    assert!(greet.status.success(), "{said}");
    assert_eq!(greet.stdout, b"it has landed\n");
    let inbox = inbox.wait_with_output().unwrap();
    assert!(inbox.status.success());
    assert_eq!(inbox.stdout, b"received: hello\n");
}
