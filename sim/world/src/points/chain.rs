//! Places in the code: the chain of return addresses of an access.

/// Most return addresses of a chain, the innermost ones.
const DEPTH: usize = 48;

/// Most calls that a description names.
const CALLS: usize = 12;

/// Shows the return addresses below `floor`, the innermost first.
fn walk(floor: Option<usize>, mut each: impl FnMut(&backtrace::Frame)) {
    let mut left = DEPTH;
    let step = |frame: &backtrace::Frame| {
        let inside = floor.is_none_or(|floor| frame.sp().addr() < floor);
        if inside {
            each(frame);
        }
        left -= 1;
        inside && left > 0
    };
    // SAFETY: synchronization is for platforms whose unwinder keeps state of its own. The simulator runs on Linux, whose
    // unwinder may be called by several threads, and nothing else here walks another thread's stack.
    unsafe { backtrace::trace_unsynchronized(step) };
}

/// A number for the place in the code. The same in all runs of one process.
pub(super) fn hash(floor: Option<usize>) -> u64 {
    // FNV-1a, by words.
    let mut hash = 0xcbf2_9ce4_8422_2325;
    walk(floor, |frame| {
        hash = (hash ^ frame.ip().addr() as u64).wrapping_mul(0x0000_0100_0000_01B3);
        hash ^= hash >> 29;
    });
    hash
}

/// The return addresses, to be named later: looking for names takes long.
pub(super) fn addresses(floor: Option<usize>) -> Vec<usize> {
    let mut all = Vec::new();
    walk(floor, |frame| all.push(frame.ip().addr()));
    all
}

/// The calls in words, innermost first, without those of the simulator around the code under test.
pub(super) fn describe(addresses: &[usize]) -> String {
    let mut calls = Vec::new();
    for &address in addresses {
        // The call stands before the return address. Some chains end with a frame at 0.
        let Some(call) = address.checked_sub(1) else {
            continue;
        };
        backtrace::resolve(std::ptr::without_provenance_mut(call), |symbol| {
            let Some(name) = symbol.name().map(|name| format!("{name:#}")) else {
                return;
            };
            let ours = name.contains("netvm") && !name.contains("netvm_world::");
            if ours && calls.len() < CALLS {
                let file = symbol.filename().and_then(|path| path.file_name()?.to_str());
                let place = file
                    .zip(symbol.lineno())
                    .map(|(file, line)| format!(" ({file}:{line})"));
                calls.push(name + &place.unwrap_or_default());
            }
        });
    }
    calls.join(" < ")
}
