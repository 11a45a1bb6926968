/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the Rust half of netvm.ko asks of C, and what C asks of it.
 *
 * Linux 6.12's `kernel` crate has no bindings for PCI, DMA, interrupts, MMU notifiers, HMM and
 * misc devices. These files supply them and nothing else: no decision is taken here. The same
 * declarations, for Rust, are in ../src/shim.rs; keep both in the same order.
 */
#ifndef NETVM_SHIM_H
#define NETVM_SHIM_H

#include <linux/types.h>

struct mm_struct;
struct task_struct;
struct vm_area_struct;
struct eventfd_ctx;
struct nv_card;
struct nv_event;
struct nv_interval;
struct nv_watch;

/* Says that it is another (NV_WAIT_*) than an event. */
#define NV_WAIT_NEWS 0
#define NV_WAIT_TIME 1
#define NV_WAIT_SIGNAL 2

/* Deadlines of the module's parameters, in milliseconds. */
unsigned int nv_deadline_ms(void);
unsigned int nv_heartbeat_ms(void);
unsigned int nv_page_ms(void);

/* pci.c: the card on its bus. */
int nv_pci_register(void);
void nv_pci_unregister(void);
void nv_card_get(struct nv_card *card);
void nv_card_put(struct nv_card *card);
u32 nv_bar_words(const struct nv_card *card);
u32 nv_bar_load(const struct nv_card *card, u32 word);
void nv_bar_store(struct nv_card *card, u32 word, u32 value);
void nv_barrier(void);
void nv_card_ring(struct nv_card *card);
bool nv_card_stop(struct nv_card *card);
void nv_card_start(struct nv_card *card);
void nv_card_rests(struct nv_card *card, bool silent);
struct nv_event *nv_card_interrupt(struct nv_card *card);
void *nv_memory_alloc(struct nv_card *card, size_t bytes, u64 *bus);
void nv_memory_unmap(struct nv_card *card, size_t bytes, u64 bus);
void nv_memory_free(size_t bytes, void *at);
u64 nv_page_map(struct nv_card *card, unsigned long pfn, bool writable);
void nv_page_unmap(struct nv_card *card, u64 bus, bool writable);
void nv_page_mark(unsigned long pfn, bool dirty, bool referenced);
void nv_page_keep(unsigned long pfn);

/* event.c: sleeping, threads, time. */
struct nv_event *nv_event_new(void);
void nv_event_free(struct nv_event *event);
u32 nv_event_count(const struct nv_event *event);
void nv_event_signal(struct nv_event *event);
int nv_event_wait(struct nv_event *event, u32 seen, u64 nanos, bool interruptible);
int nv_thread_wait(struct nv_event *event, u32 seen, u64 nanos);
struct task_struct *nv_thread_start(int (*body)(void *), void *with, const char *name, u32 number);
void nv_thread_stop(struct task_struct *thread);
bool nv_thread_should_stop(void);
bool nv_thread_should_rest(void);
void nv_thread_rest(void);
u64 nv_now(void);
u64 nv_random(void);
void nv_random_wait(void);
void nv_pause(bool may_sleep);
bool nv_may_log(void);
struct eventfd_ctx *nv_eventfd_get(int fd);
void nv_eventfd_put(struct eventfd_ctx *eventfd);
void nv_eventfd_signal(struct eventfd_ctx *eventfd);

/* memory.c: address spaces. */
struct mm_struct *nv_mm_grab_current(void);
bool nv_mm_is_current(const struct mm_struct *mm);
void nv_mm_drop(struct mm_struct *mm);
bool nv_mm_get(struct mm_struct *mm);
void nv_mm_put(struct mm_struct *mm);
void nv_mm_use(struct mm_struct *mm);
void nv_mm_unuse(struct mm_struct *mm);
void nv_yield(void);
unsigned long nv_task_size(void);
int nv_memory_fits(unsigned long start, unsigned long end);
int nv_mapped(struct mm_struct *mm, unsigned long address);
struct nv_watch *nv_watch_new(struct mm_struct *mm, void *port, int *err);
void nv_watch_free(struct nv_watch *watch);
void nv_watch_look(struct nv_watch *watch);
unsigned int nv_mm_users(struct mm_struct *mm);
struct nv_interval *nv_interval_new(struct mm_struct *mm, unsigned long start, unsigned long len,
				    void *chunk);
void nv_interval_free(struct nv_interval *interval);
void nv_interval_set(struct nv_interval *interval, unsigned long seq);
bool nv_interval_moved(struct nv_interval *interval, unsigned long seq);
int nv_pages_look(struct nv_interval *interval, unsigned long start, unsigned long count,
		  unsigned long *seq, unsigned long *pfns);
int nv_page_fault(struct mm_struct *mm, unsigned long address, bool write);
int nv_copy_in(unsigned long to, const void *from, size_t len);
int nv_copy_out(void *to, unsigned long from, size_t len);

/* servant.c: threads that serve a port, for which nothing waits. */
struct task_struct *nv_servant_start(void *port, u32 number);
void nv_servant_end(struct task_struct *thread);

/* device.c: /dev/netvmN, and what its users may do. */
u32 nv_ports_per_user(void);
u32 nv_reserved_ports(void);
bool nv_may_see_addresses(void);
bool nv_may_take_any_port(void);
bool nv_may_take_all_ports(void);
u32 nv_user(void);
int nv_device_add(struct nv_card *card, void *rust);
void nv_device_close(struct nv_card *card);
void nv_device_revoke(struct nv_card *card);
void nv_device_end_files(struct nv_card *card);
u32 nv_device_number(const struct nv_card *card);
void nv_map_bar(struct nv_card *card, struct vm_area_struct *vma, u64 offset);
void nv_map_memory(struct vm_area_struct *vma, void *at, u64 offset);
bool nv_vma_is_shared(const struct vm_area_struct *vma);
bool nv_vma_wants_write(const struct vm_area_struct *vma);

/* What C calls; ../src/callbacks.rs. None of these may unwind. */
int nv_rs_card_body(void *card);
void *nv_rs_open(void *rust, bool writable);
void nv_rs_end(void *file);
void nv_rs_release(void *file);
long nv_rs_ioctl(void *file, unsigned int number, unsigned long argument);
int nv_rs_mmap(void *file, struct vm_area_struct *vma, u64 offset, u64 len);
void nv_rs_invalidate(void *chunk, struct nv_interval *interval, unsigned long start,
		      unsigned long end, unsigned long seq, bool may_sleep);
void nv_rs_orphaned(void *port);
bool nv_rs_is_orphan(void *port);
bool nv_rs_is_paging(void *port);
void nv_rs_serve(void *port);
int nv_rs_young(void *port, unsigned long start, unsigned long end, bool clear);

#endif
