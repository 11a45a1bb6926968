// SPDX-License-Identifier: MIT OR Apache-2.0

//! The NetVM kernel module: gives `netvm-host` a card, memory and processes.

use kernel::prelude::*;
use netvm_abi::bar::BarMap;
use netvm_abi::Geometry;
use netvm_host::counters::Counters;

module! {
    type: NetVm,
    name: "netvm",
    author: "The NetVM authors",
    description: "NetVM: remote memory access without pinning",
    license: "Dual MIT/GPL",
}

struct NetVm;

impl kernel::Module for NetVm {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let words = BarMap::new(&Geometry::default()).words;
        pr_info!(
            "a card's memory takes {} words; {:?}\n",
            words,
            Counters::default()
        );
        Ok(Self)
    }
}
