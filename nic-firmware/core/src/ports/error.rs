//! A port's error ring: what has failed, told once.

use super::Port;
use crate::env::Env;
use crate::platform::Platform;
use netvm_abi::bar::port::ERROR_READ;
use netvm_abi::port_area::{ERROR_RECORDS, ERROR_WORDS, ERROR_WRITE, ERRORS, ERRORS_LOST, ErrorRecord};
use netvm_abi::storage::Storage;
use netvm_abi::words::SharedWords;

impl Port {
    /// Puts a record into the error ring, or counts that it was full, and interrupts. The record is stored before the
    /// word that announces it, and both before the interrupt. An application that goes to sleep looks at the word
    /// after it has said so to the kernel.
    pub(crate) fn record_error<P: Platform, S: Storage>(
        &mut self,
        p: &mut P,
        env: &mut Env<S>,
        record: &ErrorRecord,
    ) {
        let area = env.shared.port_area(self.id);
        let read = p.bar().load_acquire(env.bar.port(self.id).plus(ERROR_READ.0));
        if self.error_write.wrapping_sub(read) >= ERROR_RECORDS {
            self.errors_lost = self.errors_lost.wrapping_add(1);
            env.counters.errors_lost += 1;
            p.shared()
                .store_release(area.plus(ERRORS_LOST.0), self.errors_lost);
        } else {
            let slot = self.error_write % ERROR_RECORDS;
            self.error_write = self.error_write.wrapping_add(1);
            env.counters.error_records += 1;
            let at = area.plus(ERRORS.0 + slot * ERROR_WORDS as u32);
            p.shared().store_slice(at, &record.encode());
            p.shared()
                .store_release(area.plus(ERROR_WRITE.0), self.error_write);
        }
        env.interrupt_port(p, self.id);
    }
}
