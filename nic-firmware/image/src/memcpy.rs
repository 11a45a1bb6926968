//! `memcpy`, which the compiler calls for every structure that it moves.
//!
//! The target is strict about alignment, so the compiler itself copies no more than 32 bytes in place, and the `memcpy`
//! that comes with it for this target takes some 140 instructions for a header of 84 bytes. A write through both cards
//! moves a dozen of these. Structures are aligned to 4 or 8: this one moves pairs of registers then, and leaves
//! anything else to `memmove`, which is the compiler's.
//!
//! Every access is aligned, so it serves before address translation is on, too. It moves memory of this program alone; what
//! others may change at the same time goes through [`crate::host::copy`].

core::arch::global_asm!(
    r#"
    .section .text.memcpy, "ax"
    .global memcpy
    .type memcpy, %function
    // x0: to, x1: from, x2: bytes. Gives x0.
memcpy:
    orr x4, x0, x1
    mov x3, x0
    tst x4, #7
    b.ne 5f
    subs x2, x2, #32
    b.lo 2f
1:  ldp x4, x5, [x1], #16
    ldp x6, x7, [x1], #16
    stp x4, x5, [x3], #16
    stp x6, x7, [x3], #16
    subs x2, x2, #32
    b.hs 1b
    // What is left stands in the lower five bits.
2:  tbz x2, #4, 3f
    ldp x4, x5, [x1], #16
    stp x4, x5, [x3], #16
3:  tbz x2, #3, 4f
    ldr x4, [x1], #8
    str x4, [x3], #8
4:  tbz x2, #2, 8f
    ldr w4, [x1], #4
    str w4, [x3], #4
    b 8f
5:  tst x4, #3
    b.ne 9f
    subs x2, x2, #16
    b.lo 7f
6:  ldp w4, w5, [x1], #8
    ldp w6, w7, [x1], #8
    stp w4, w5, [x3], #8
    stp w6, w7, [x3], #8
    subs x2, x2, #16
    b.hs 6b
    // The same with four bits.
7:  tbz x2, #3, 4b
    ldp w4, w5, [x1], #8
    stp w4, w5, [x3], #8
    b 4b
8:  tbz x2, #1, 10f
    ldrh w4, [x1], #2
    strh w4, [x3], #2
10: tbz x2, #0, 11f
    ldrb w4, [x1]
    strb w4, [x3]
11: ret
9:  b memmove
    .size memcpy, . - memcpy
"#
);
