//! Imports that are let go of while no message can tell their exporters.

use crate::imports::some_grant;
use netvm_abi::control::Control;
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::*;
use netvm_host::attach::HostConfig;
use netvm_kit::host::*;

/// More is let go of than messages can leave: each exporter hears of it, and each place comes back, while the port goes on.
#[test]
pub(crate) fn a_release_that_cannot_be_sent_now_is_sent_later() {
    let mut stand = Stand::with(
        &HostConfig {
            imports: 64,
            ..config()
        },
        &geometry(),
    );
    let port = stand.open();
    stand.link_up(PEER);
    let grant = |n: u32| control::Grant {
        capability: CapabilitySlot(n),
        ..some_grant()
    };
    let mut tokens = Vec::new();
    for n in 0..20 {
        let token = stand.import(port, "x", false);
        stand.control(
            PEER,
            0,
            &Control::Granted {
                token,
                grant: grant(n),
            },
        );
        stand.poll();
        tokens.push(token);
    }
    stand.heard();
    stand.obliging = false;
    for token in &tokens {
        let left = stand
            .host
            .unimport(&mut stand.platform, port.port, *token, stand.now);
        assert_eq!(left, Ok(()));
    }
    assert_eq!(stand.count("releases_queued"), 4, "of 20, beyond 16 slots");
    let mut released = Vec::new();
    for _ in 0..3 {
        stand.poll();
        for event in stand.heard() {
            if let Some((_, Control::Release { capability, .. })) = stand.control_of(&event) {
                released.push(capability.0);
            }
            if let HostEvent::SendControl { token, .. } = event {
                stand.say(NicEvent::ControlSent {
                    token,
                    status: Status::Ok,
                });
            }
        }
    }
    released.sort_unstable();
    assert_eq!(released, (0..20).collect::<Vec<u32>>(), "each once");
    // A card that dies, or a link that goes, waits for none of them.
    let token = stand.import(port, "x", false);
    stand.control(
        PEER,
        0,
        &Control::Granted {
            token,
            grant: grant(30),
        },
    );
    stand.poll();
    stand.heard();
    stand.obliging = true;
    stand.close(port);
}
