//! The first instructions, and the exception vectors.
//!
//! FP and SIMD are switched on before any compiled code runs: the compiler uses them for plain copies.

core::arch::global_asm!(
    r#"
    .section .text.boot, "ax"
    .global _start
_start:
    mrs x0, mpidr_el1
    and x0, x0, #0xff
    cbnz x0, 3f
    mov x0, #(3 << 20)
    msr cpacr_el1, x0
    isb
    // SP_EL1 is for exceptions, SP_EL0 for everything else: a broken stack can still be reported.
    ldr x0, =__exception_stack_top
    msr spsel, #1
    mov sp, x0
    ldr x0, =__stack_top
    msr spsel, #0
    mov sp, x0
    ldr x0, =vectors
    msr vbar_el1, x0
    ldr x0, =__bss_start
    ldr x1, =__bss_end
1:  cmp x0, x1
    b.hs 2f
    stp xzr, xzr, [x0], #16
    b 1b
2:  isb
    bl firmware_main
3:  wfe
    b 3b

    // x0..x30, then ELR and SPSR, then all of FP/SIMD: interrupt handlers are compiled code and use it.
    .macro SAVE
    sub sp, sp, #(272 + 528)
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    mrs x1, elr_el1
    stp x30, x1, [sp, #240]
    mrs x1, spsr_el1
    str x1, [sp, #256]
    .endm

    .macro ENTRY kind
    .balign 0x80
    sub sp, sp, #16
    str x0, [sp]
    mov x0, #\kind
    b fatal_entry
    .endm

    .balign 0x800
    .global vectors
vectors:
    ENTRY 0
    .balign 0x80
    b irq_entry
    ENTRY 2
    ENTRY 3
    ENTRY 4
    ENTRY 5
    ENTRY 6
    ENTRY 7
    ENTRY 8
    ENTRY 9
    ENTRY 10
    ENTRY 11
    ENTRY 12
    ENTRY 13
    ENTRY 14
    ENTRY 15

    // Never returns, so nothing needs to be kept but what is reported.
fatal_entry:
    mov x1, x30
    mrs x2, sp_el0
    bl exception_report
    b .

irq_entry:
    SAVE
    add x1, sp, #272
    stp q0, q1, [x1, #0]
    stp q2, q3, [x1, #32]
    stp q4, q5, [x1, #64]
    stp q6, q7, [x1, #96]
    stp q8, q9, [x1, #128]
    stp q10, q11, [x1, #160]
    stp q12, q13, [x1, #192]
    stp q14, q15, [x1, #224]
    stp q16, q17, [x1, #256]
    stp q18, q19, [x1, #288]
    stp q20, q21, [x1, #320]
    stp q22, q23, [x1, #352]
    stp q24, q25, [x1, #384]
    stp q26, q27, [x1, #416]
    stp q28, q29, [x1, #448]
    stp q30, q31, [x1, #480]
    mrs x2, fpsr
    mrs x3, fpcr
    add x1, x1, #512
    stp x2, x3, [x1]
    ldr x0, [sp, #248]
    bl interrupt_arrived
    add x1, sp, #272
    add x4, x1, #512
    ldp x2, x3, [x4]
    msr fpsr, x2
    msr fpcr, x3
    ldp q0, q1, [x1, #0]
    ldp q2, q3, [x1, #32]
    ldp q4, q5, [x1, #64]
    ldp q6, q7, [x1, #96]
    ldp q8, q9, [x1, #128]
    ldp q10, q11, [x1, #160]
    ldp q12, q13, [x1, #192]
    ldp q14, q15, [x1, #224]
    ldp q16, q17, [x1, #256]
    ldp q18, q19, [x1, #288]
    ldp q20, q21, [x1, #320]
    ldp q22, q23, [x1, #352]
    ldp q24, q25, [x1, #384]
    ldp q26, q27, [x1, #416]
    ldp q28, q29, [x1, #448]
    ldp q30, q31, [x1, #480]
    ldr x1, [sp, #256]
    msr spsr_el1, x1
    ldp x30, x1, [sp, #240]
    msr elr_el1, x1
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    ldp x0, x1, [sp, #0]
    add sp, sp, #(272 + 528)
    eret
"#
);
