#define _GNU_SOURCE
#include "fault.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "mscclgo/emu/abi.h"

// The state of fault_catch on this OS thread.
static __thread struct {
  void (*recover)(void*, const char*);
  void* argument;
  void* const* top;
  uintptr_t guard;   // behind dynamic shared memory
  uint64_t guarded;  // bytes
  uint32_t dynamic;  // bytes of dynamic shared memory
  char text[160];
  fault_access access;
  uint64_t code, back;
  void* signal_stack;  // a stack that overflows cannot hold the handler
} here;

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { SIGNALS = sizeof(signals) / sizeof(*signals), SIGNAL_STACK_BYTES = 64 * 1024 };

static struct sigaction before[SIGNALS];

#if defined(__aarch64__)
// syndrome returns the kind of access that the kernel tells of, or 0. QEMU's user mode before 10 tells
// nothing.
static int syndrome(const ucontext_t* c) {
  const unsigned char* at = c->uc_mcontext.__reserved;
  const struct esr_context* record = (const void*)at;
  for (; record->head.magic && record->head.size; record = (const void*)(at += record->head.size)) {
    if (record->head.magic == ESR_MAGIC) return record->esr & 1 << 6 ? 2 : 1;
  }
  return 0;
}
#endif

// note keeps what fault_last returns. A stack that is not the running fiber's, or has overflowed, is not
// looked at.
static void note(int number, const siginfo_t* info, const ucontext_t* c) {
  here.access = (fault_access){0, 0};
  here.code = here.back = 0;
#if defined(__x86_64__)
  const uintptr_t sp = (uintptr_t)c->uc_mcontext.gregs[REG_RSP];
  const uintptr_t top = (uintptr_t)*here.top, bottom = top & ~(uintptr_t)(MSCCLGO_EMU_STACK_BYTES - 1);
  enum { MARGIN = 64 * 1024 };  // the guard is a page
  here.code = (uint64_t)c->uc_mcontext.gregs[REG_RIP] + 1;
  if (sp > bottom + MARGIN && sp < top) here.back = *(const uint64_t*)sp;
  const int write = c->uc_mcontext.gregs[REG_ERR] & 2 ? 2 : 1;
#elif defined(__aarch64__)
  here.code = c->uc_mcontext.pc + 1;
  here.back = c->uc_mcontext.regs[30];
  const int write = syndrome(c);
#else
  (void)c;
  const int write = 0;
#endif
  if (number == SIGSEGV || number == SIGBUS) here.access = (fault_access){(uintptr_t)info->si_addr, write};
}

fault_access fault_last(uint64_t* code, uint64_t* back) {
  *code = here.code;
  *back = here.back;
  return here.access;
}

static void describe(int number, const siginfo_t* info) {
  const uintptr_t address = (uintptr_t)info->si_addr;
  const uintptr_t bottom = (uintptr_t)*here.top & ~(uintptr_t)(MSCCLGO_EMU_STACK_BYTES - 1);
  if (number == SIGFPE) {
    snprintf(here.text, sizeof(here.text), "integer division by zero");
  } else if (number == SIGILL) {
    snprintf(here.text, sizeof(here.text), "illegal instruction");
  } else if (address - bottom < MSCCLGO_EMU_STACK_BYTES) {
    snprintf(here.text, sizeof(here.text), "stack overflow: a thread has %u bytes", MSCCLGO_EMU_STACK_BYTES);
  } else if (address - here.guard < here.guarded) {
    snprintf(here.text, sizeof(here.text),
             "illegal memory access beyond the %u bytes of dynamic shared memory of the launch",
             here.dynamic);
  } else if (address < 4096) {
    snprintf(here.text, sizeof(here.text),
             "illegal memory access at %p, by a null pointer: a handle in device memory was not made, or "
             "its index is outside the handles that there are",
             info->si_addr);
  } else {
    snprintf(here.text, sizeof(here.text), "illegal memory access at %p", info->si_addr);
  }
}

// redirect makes the signal handler return to recover.
static int redirect(ucontext_t* c) {
  const uintptr_t top = (uintptr_t)*here.top & ~(uintptr_t)15;
#if defined(__x86_64__)
  c->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)here.recover;
  c->uc_mcontext.gregs[REG_RSP] = (greg_t)(top - 8);  // as after a call
  c->uc_mcontext.gregs[REG_RDI] = (greg_t)(uintptr_t)here.argument;
  c->uc_mcontext.gregs[REG_RSI] = (greg_t)(uintptr_t)here.text;
  return 1;
#elif defined(__aarch64__)
  c->uc_mcontext.pc = (uintptr_t)here.recover;
  c->uc_mcontext.sp = top;
  c->uc_mcontext.regs[0] = (uintptr_t)here.argument;
  c->uc_mcontext.regs[1] = (uintptr_t)here.text;
  return 1;
#else
  (void)c, (void)top;
  return 0;
#endif
}

static void handle(int number, siginfo_t* info, void* context) {
  // Without a stack to continue on, the fault is not the kernel's; and without this test
  // it would be raised again and again.
  if (here.recover && *here.top) {
    note(number, info, context);
    describe(number, info);
    if (redirect(context)) return;
  }
  int i = 0;
  while (signals[i] != number) i++;
  const struct sigaction* old = &before[i];
  if (old->sa_flags & SA_SIGINFO) {
    old->sa_sigaction(number, info, context);
  } else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
    old->sa_handler(number);
  } else {
    sigaction(number, old, NULL);  // the fault is raised again and ends the process
  }
}

static void install(void) {
  struct sigaction a;
  memset(&a, 0, sizeof(a));
  a.sa_sigaction = handle;
  a.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&a.sa_mask);
  for (int i = 0; i < SIGNALS; i++) sigaction(signals[i], &a, &before[i]);
}

void fault_setup(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
}

void fault_enter(void) {
  here.signal_stack = malloc(SIGNAL_STACK_BYTES);
  if (!here.signal_stack) return;
  const stack_t s = {.ss_sp = here.signal_stack, .ss_size = SIGNAL_STACK_BYTES};
  sigaltstack(&s, NULL);
}

void fault_leave(void) {
  const stack_t s = {.ss_flags = SS_DISABLE};
  sigaltstack(&s, NULL);
  free(here.signal_stack);
  here.signal_stack = NULL;
}

void fault_catch(void (*recover)(void*, const char*), void* argument, void* const* top) {
  here.recover = recover;
  here.argument = argument;
  here.top = top;
}

void fault_guard(const void* guard, uint64_t bytes, uint32_t dynamic) {
  here.guard = (uintptr_t)guard;
  here.guarded = bytes;
  here.dynamic = dynamic;
}

static void jump(void* where, const char* text) {
  (void)text;
  longjmp(*(jmp_buf*)where, 1);
}

bool fault_try(void (*f)(void*), void* argument) {
  // jump runs below the frames of f, which uses no more.
  enum { ENOUGH = 16 * 1024 };
  void* const top = (char*)__builtin_frame_address(0) - ENOUGH;
  jmp_buf where;
  const bool whole = setjmp(where) == 0;
  if (whole) {
    fault_catch(jump, &where, &top);
    f(argument);
  }
  fault_catch(NULL, NULL, NULL);
  return whole;
}
