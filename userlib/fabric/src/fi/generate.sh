#!/bin/sh
# Makes bindings.in from the headers of libfabric-dev (1.17). Needs bindgen 0.71 (`cargo install bindgen-cli --version 0.71.1 --locked`)
# and libclang (LIBCLANG_PATH=/usr/lib/llvm-19/lib with Debian's libclang-19-dev).
set -e
cd "$(dirname "$0")"
bindgen headers.h -o bindings.in \
    --allowlist-file '/usr/include/rdma/.*' --allowlist-var 'FI_.*' \
    --blocklist-function '.*' \
    --blocklist-type 'pthread.*|__.*|iovec' \
    --blocklist-type 'fid_mc|fi_trigger.*|fi_deferred.*|fi_hmem_override.*|fi_mutex_cond|fi_wait_pollfd' \
    --blocklist-type 'fi_ops_log|fi_log.*|fi_ops_collective|fi_collective_.*|fi_op_.*|fi_trigger' \
    --opaque-type 'fid_mc' \
    --rust-target 1.85 --rust-edition 2024 --no-doc-comments --no-prepend-enum-name --no-layout-tests --wrap-unsafe-ops \
    --raw-line 'use libc::iovec;'
# Flags are 64 bits wide, whatever their values are.
sed -i -E '/pub const FI_(MR_|E|[A-Z]*_VERSION|PROV_SPECIFIC)/!s/^(pub const FI_[A-Z0-9_]+): u32 =/\1: u64 =/' bindings.in
sed -i -E 's/^pub const FI_EVENT: u32/pub const FI_EVENT: u64/' bindings.in
