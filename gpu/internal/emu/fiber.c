// fiber.c: the switch between fibers. A switch is a call, so only the registers that a
// callee must preserve are saved.
#include "fiber.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && !defined(MSCCLGO_EMU_UCONTEXT)

// System V ABI: rbx, rbp, r12 to r15, and the control words of SSE and x87.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".hidden mscclgo_emu_fiber_switch\n"
    ".globl mscclgo_emu_fiber_switch\n"
    ".type mscclgo_emu_fiber_switch, @function\n"
    "mscclgo_emu_fiber_switch:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  subq $8, %rsp\n"
    "  stmxcsr (%rsp)\n"
    "  fnstcw 4(%rsp)\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  ldmxcsr (%rsp)\n"
    "  fldcw 4(%rsp)\n"
    "  addq $8, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    ".size mscclgo_emu_fiber_switch, .-mscclgo_emu_fiber_switch\n"
    // A new fiber returns to here, with its entry in rbx and argument in rbp.
    ".p2align 4\n"
    ".hidden mscclgo_emu_fiber_start\n"
    ".globl mscclgo_emu_fiber_start\n"
    ".type mscclgo_emu_fiber_start, @function\n"
    "mscclgo_emu_fiber_start:\n"
    "  movq %rbp, %rdi\n"
    "  xorl %ebp, %ebp\n"
    "  call *%rbx\n"
    "  ud2\n"
    ".size mscclgo_emu_fiber_start, .-mscclgo_emu_fiber_start\n");

void mscclgo_emu_fiber_switch(fiber* from, fiber to);
void mscclgo_emu_fiber_start(void);

void fiber_switch(fiber* from, fiber to) { mscclgo_emu_fiber_switch(from, to); }

fiber fiber_make(void* top, void (*entry)(void*), void* argument) {
  uint64_t* sp = (uint64_t*)top;
  uint32_t sse;
  uint16_t x87;
  __asm__("stmxcsr %0" : "=m"(sse));
  __asm__("fnstcw %0" : "=m"(x87));
  *--sp = (uint64_t)(uintptr_t)mscclgo_emu_fiber_start;
  *--sp = (uint64_t)(uintptr_t)argument;  // rbp
  *--sp = (uint64_t)(uintptr_t)entry;     // rbx
  sp -= 4;                                // r12 to r15
  memset(sp, 0, 4 * sizeof(*sp));
  *--sp = (uint64_t)sse | (uint64_t)x87 << 32;
  return sp;
}

#elif defined(__aarch64__) && !defined(MSCCLGO_EMU_UCONTEXT)

// AAPCS64: x19 to x30 and the low halves of v8 to v15.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".hidden mscclgo_emu_fiber_switch\n"
    ".globl mscclgo_emu_fiber_switch\n"
    ".type mscclgo_emu_fiber_switch, %function\n"
    "mscclgo_emu_fiber_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n"
    "  stp x21, x22, [sp, #16]\n"
    "  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n"
    "  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n"
    "  ldp x21, x22, [sp, #16]\n"
    "  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n"
    "  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    ".size mscclgo_emu_fiber_switch, .-mscclgo_emu_fiber_switch\n"
    // A new fiber returns to here, with its entry in x19 and argument in x20.
    ".p2align 4\n"
    ".hidden mscclgo_emu_fiber_start\n"
    ".globl mscclgo_emu_fiber_start\n"
    ".type mscclgo_emu_fiber_start, %function\n"
    "mscclgo_emu_fiber_start:\n"
    "  mov x0, x20\n"
    "  blr x19\n"
    "  brk #0\n"
    ".size mscclgo_emu_fiber_start, .-mscclgo_emu_fiber_start\n");

void mscclgo_emu_fiber_switch(fiber* from, fiber to);
void mscclgo_emu_fiber_start(void);

void fiber_switch(fiber* from, fiber to) { mscclgo_emu_fiber_switch(from, to); }

fiber fiber_make(void* top, void (*entry)(void*), void* argument) {
  uint64_t* sp = (uint64_t*)top - 20;
  memset(sp, 0, 160);
  sp[0] = (uint64_t)(uintptr_t)entry;                     // x19
  sp[1] = (uint64_t)(uintptr_t)argument;                  // x20
  sp[11] = (uint64_t)(uintptr_t)mscclgo_emu_fiber_start;  // x30
  return sp;
}

#else

// Other machines: the context functions of POSIX, with the context at the stack's top.
// They save the signal mask too, which costs a system call.
#include <ucontext.h>

typedef struct start {
  ucontext_t context;
  void (*entry)(void*);
  void* argument;
} start;

// makecontext passes only ints.
static void begin(unsigned high, unsigned low) {
  start* s = (start*)((uintptr_t)high << 16 << 16 | low);
  s->entry(s->argument);
}

void fiber_switch(fiber* from, fiber to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, (ucontext_t*)to);
}

fiber fiber_make(void* top, void (*entry)(void*), void* argument) {
  start* s = (start*)(((uintptr_t)top - sizeof(start)) & ~(uintptr_t)63);
  // The stack's size is not known here; all memory below belongs to the caller.
  const size_t size = 16 * 1024;
  getcontext(&s->context);
  s->context.uc_stack.ss_sp = (char*)s - size;
  s->context.uc_stack.ss_size = size;
  s->context.uc_link = NULL;
  s->entry = entry;
  s->argument = argument;
  makecontext(&s->context, (void (*)(void))begin, 2, (unsigned)((uintptr_t)s >> 16 >> 16),
              (unsigned)(uintptr_t)s);
  return &s->context;
}

#endif
