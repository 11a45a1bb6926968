// SPDX-License-Identifier: GPL-2.0
/*
 * Address spaces: which pages leave, which are there, faults, copies in and out. C, because
 * 6.12's `kernel` crate binds neither MMU notifiers nor HMM nor kthread_use_mm, and the accesses
 * to user memory are inline assembly.
 *
 * No page is pinned: hmm_range_fault() takes no reference. What it says is true until the
 * interval's invalidation has been called, and is believed only under the lock under which that
 * is noted (nv_interval_set, nv_interval_moved).
 */
#include <linux/errno.h>
#include <linux/hmm.h>
#include <linux/kthread.h>
#include <linux/magic.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pkeys.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/userfaultfd_k.h>
#include <linux/workqueue.h>

#include "shim.h"

struct nv_watch {
	struct mmu_notifier notifier;
	/* Ends the port of an address space that has gone, or that only the port's worker keeps. */
	struct delayed_work look;
	bool gone;
	void *port;
};

struct nv_interval {
	struct mmu_interval_notifier notifier;
	unsigned long start;
	unsigned long end;
	void *chunk;
};

/* C: mmgrab is inline. NULL for a thread without an address space. */
struct mm_struct *nv_mm_grab_current(void)
{
	if (!current->mm)
		return NULL;
	mmgrab(current->mm);
	return current->mm;
}

/* C: current is a macro. */
bool nv_mm_is_current(const struct mm_struct *mm)
{
	return current->mm == mm;
}

/* C: inline. */
void nv_mm_drop(struct mm_struct *mm)
{
	mmdrop(mm);
}

/* C: inline. False when the process has ended. */
bool nv_mm_get(struct mm_struct *mm)
{
	return mmget_not_zero(mm);
}

/* C: no binding. */
void nv_mm_put(struct mm_struct *mm)
{
	mmput(mm);
}

/*
 * C: no binding. What this thread allocates on the way is charged to the process' memory cgroup,
 * as if the process had allocated it.
 */
void nv_mm_use(struct mm_struct *mm)
{
	struct mem_cgroup *group = get_mem_cgroup_from_mm(mm);

	kthread_use_mm(mm);
	set_active_memcg(group);
}

/* C: as above. */
void nv_mm_unuse(struct mm_struct *mm)
{
	struct mem_cgroup *group = set_active_memcg(NULL);

	kthread_unuse_mm(mm);
	mem_cgroup_put(group);
}

/* C: a macro. Gives the processor to others that wait for it. */
void nv_yield(void)
{
	cond_resched();
}

/* C: a macro over the calling process' personality. The first address that it cannot map. */
unsigned long nv_task_size(void)
{
	return TASK_SIZE;
}

/*
 * Memory that the card may never use: of devices, huge pages that are not paged, and what a protection
 * key guards. Each thread of the process has rights of its own to the last, which neither the card nor
 * a thread of the kernel has.
 */
static bool nv_is_foreign(struct vm_area_struct *vma)
{
	return vma->vm_flags & (VM_IO | VM_PFNMAP | VM_HUGETLB) || vma_pkey(vma);
}

/* C: VMAs. Of the calling process: -EOPNOTSUPP where a part of the range is of a kind that is never served. */
int nv_memory_fits(unsigned long start, unsigned long end)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	int err = 0;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	{
		VMA_ITERATOR(places, mm, start);

		for_each_vma_range(places, vma, end) {
			if (nv_is_foreign(vma)) {
				err = -EOPNOTSUPP;
				break;
			}
		}
	}
	mmap_read_unlock(mm);
	return err;
}

/* C: VMAs. Zero, or why no page can ever be there: -EFAULT, or a fatal signal's -EINTR. */
int nv_mapped(struct mm_struct *mm, unsigned long address)
{
	struct vm_area_struct *vma;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = vma_lookup(mm, address);
	mmap_read_unlock(mm);
	return vma ? 0 : -EFAULT;
}

static int nv_clear_young(struct mmu_notifier *notifier, struct mm_struct *mm, unsigned long start,
			  unsigned long end)
{
	return nv_rs_young(container_of(notifier, struct nv_watch, notifier)->port, start, end, true);
}

static int nv_test_young(struct mmu_notifier *notifier, struct mm_struct *mm, unsigned long address)
{
	return nv_rs_young(container_of(notifier, struct nv_watch, notifier)->port, address,
			   address + PAGE_SIZE, false);
}

static void nv_look(struct work_struct *work)
{
	struct nv_watch *watch = container_of(to_delayed_work(work), struct nv_watch, look);

	if (READ_ONCE(watch->gone) || nv_rs_is_orphan(watch->port))
		nv_rs_orphaned(watch->port);
	else if (nv_rs_is_paging(watch->port))
		nv_watch_look(watch);
}

/*
 * C: work queues are macros. A worker that waits for a page keeps the address space, and with it
 * the mappings of the port's file: the process may be over, and nothing else would tell.
 */
void nv_watch_look(struct nv_watch *watch)
{
	queue_delayed_work(system_unbound_wq, &watch->look, HZ / 10);
}

/* C: inline. The port's worker is one of them while it serves. */
unsigned int nv_mm_users(struct mm_struct *mm)
{
	return atomic_read(&mm->mm_users);
}

/* Not here: the port's end waits for the card, and for a copy that is under way. */
static void nv_mm_gone(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	struct nv_watch *watch = container_of(notifier, struct nv_watch, notifier);

	WRITE_ONCE(watch->gone, true);
	mod_delayed_work(system_unbound_wq, &watch->look, 0);
}

/* The classic LRU calls the first, MGLRU and idle-page tracking the others. */
static const struct mmu_notifier_ops nv_watch_ops = {
	.clear_flush_young = nv_clear_young,
	.clear_young = nv_clear_young,
	.test_young = nv_test_young,
	.release = nv_mm_gone,
};

/* C: structures of callbacks. NULL, and why in `err`: no memory, or a signal of the caller. */
struct nv_watch *nv_watch_new(struct mm_struct *mm, void *port, int *err)
{
	struct nv_watch *watch = kzalloc(sizeof(*watch), GFP_KERNEL_ACCOUNT);

	*err = watch ? 0 : -ENOMEM;
	if (!watch)
		return NULL;
	watch->port = port;
	INIT_DELAYED_WORK(&watch->look, nv_look);
	watch->notifier.ops = &nv_watch_ops;
	*err = mmu_notifier_register(&watch->notifier, mm);
	if (*err) {
		kfree(watch);
		return NULL;
	}
	return watch;
}

/* C: as above. No callback runs, or will, when it returns. */
void nv_watch_free(struct nv_watch *watch)
{
	mmu_notifier_unregister(&watch->notifier, watch->notifier.mm);
	/* The line above has called the last callback, too. */
	cancel_delayed_work_sync(&watch->look);
	kfree(watch);
}

static bool nv_invalidate(struct mmu_interval_notifier *notifier,
			  const struct mmu_notifier_range *range, unsigned long seq)
{
	struct nv_interval *interval = container_of(notifier, struct nv_interval, notifier);

	nv_rs_invalidate(interval->chunk, interval, max(range->start, interval->start),
			 min(range->end, interval->end), seq, mmu_notifier_range_blockable(range));
	/* Callers that may not block are served, too. */
	return true;
}

static const struct mmu_interval_notifier_ops nv_interval_ops = {
	.invalidate = nv_invalidate,
};

/* C: structures of callbacks. The process lives (nv_mm_get). */
struct nv_interval *nv_interval_new(struct mm_struct *mm, unsigned long start, unsigned long len,
				    void *chunk)
{
	struct nv_interval *interval = kzalloc(sizeof(*interval), GFP_KERNEL_ACCOUNT);

	if (!interval)
		return NULL;
	interval->start = start;
	interval->end = start + len;
	interval->chunk = chunk;
	if (mmu_interval_notifier_insert(&interval->notifier, mm, start, len, &nv_interval_ops)) {
		kfree(interval);
		return NULL;
	}
	return interval;
}

/* C: no binding. No callback runs, or will, when it returns. */
void nv_interval_free(struct nv_interval *interval)
{
	mmu_interval_notifier_remove(&interval->notifier);
	kfree(interval);
}

/* C: inline. Under the lock under which pages are published. */
void nv_interval_set(struct nv_interval *interval, unsigned long seq)
{
	mmu_interval_set_seq(&interval->notifier, seq);
}

/* C: inline. Under the same lock: pages were taken away since the look. */
bool nv_interval_moved(struct nv_interval *interval, unsigned long seq)
{
	return mmu_interval_read_retry(&interval->notifier, seq);
}

/*
 * C: HMM is a structure of C. Says which pages are there, and faults none. Each of `pfns` becomes
 * a page frame number, with bit 63: there, bit 62: writable. -EBUSY: pages were being taken away.
 */
int nv_pages_look(struct nv_interval *interval, unsigned long start, unsigned long count,
		  unsigned long *seq, unsigned long *pfns)
{
	struct mm_struct *mm = interval->notifier.mm;
	struct hmm_range range = {
		.notifier = &interval->notifier,
		.start = start,
		.end = start + count * PAGE_SIZE,
		.hmm_pfns = pfns,
	};
	unsigned long at;
	int err;

	for (at = 0; at < count; at++)
		pfns[at] = 0;
	range.notifier_seq = mmu_interval_read_begin(&interval->notifier);
	err = mmap_read_lock_killable(mm);
	if (!err) {
		err = hmm_range_fault(&range);
		mmap_read_unlock(mm);
	}
	*seq = range.notifier_seq;
	for (at = 0; at < count; at++) {
		unsigned long flags = pfns[at] & (HMM_PFN_VALID | HMM_PFN_WRITE);

		pfns[at] = flags & HMM_PFN_VALID ? flags | (pfns[at] & ~HMM_PFN_FLAGS) : 0;
	}
	return err;
}

/*
 * Whether the pages come without the help of another process: then a fault that has to wait for
 * one is an error at once (userfaultfd).
 */
static bool nv_is_plain_memory(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) ||
	       (vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == TMPFS_MAGIC);
}

/*
 * C: VMAs. Brings one page in. A file's page may take as long as its server likes (FUSE, NFS): it
 * is waited for without the lock of the address space, and until a fatal signal. The lock is not
 * kept even for a second try (FAULT_FLAG_TRIED): the process could not end meanwhile.
 *
 * -EINTR a fatal signal; -EAGAIN not yet, once more; -EFAULT no mapping; -EPERM not with these
 * rights; -EOPNOTSUPP device memory or huge pages; -ENOMEM; -EIO past the end of its file, its
 * server says so, or the process answers its faults itself, for which nothing waits.
 */
int nv_page_fault(struct mm_struct *mm, unsigned long address, bool write)
{
	unsigned int flags = FAULT_FLAG_REMOTE | FAULT_FLAG_KILLABLE;
	struct vm_area_struct *vma;
	vm_fault_t got;
	int err = 0;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = vma_lookup(mm, address);
	if (!vma)
		err = -EFAULT;
	else if (nv_is_foreign(vma))
		err = -EOPNOTSUPP;
	else if (!(vma->vm_flags & VM_READ) || (write && !(vma->vm_flags & VM_WRITE)))
		err = -EPERM;
	if (err) {
		mmap_read_unlock(mm);
		return err;
	}
	if (write)
		flags |= FAULT_FLAG_WRITE;
	if (!nv_is_plain_memory(vma))
		flags |= FAULT_FLAG_ALLOW_RETRY;
	got = handle_mm_fault(vma, address, flags, NULL);
	/* Both have unlocked. */
	if (got & VM_FAULT_COMPLETED)
		return 0;
	if (got & VM_FAULT_RETRY)
		return fatal_signal_pending(current) ? -EINTR : -EAGAIN;
	mmap_read_unlock(mm);
	if (got & VM_FAULT_OOM)
		return -ENOMEM;
	if (got & VM_FAULT_SIGSEGV)
		return -EFAULT;
	return got & VM_FAULT_ERROR ? -EIO : 0;
}

#define NV_PUT(type)                                                        \
	({                                                                  \
		pagefault_disable();                                        \
		err = __put_user(READ_ONCE(*(type *)from), (type __user *)to); \
		pagefault_enable();                                         \
		err;                                                        \
	})

#define NV_GET(type)                                                        \
	({                                                                  \
		type value = 0;                                             \
									    \
		pagefault_disable();                                        \
		err = __get_user(value, (type __user *)from);               \
		pagefault_enable();                                         \
		WRITE_ONCE(*(type *)to, value);                             \
		err;                                                        \
	})

/*
 * C: user accesses are inline assembly. Copies to the address space in use; not zero, and perhaps
 * a part copied, where a page is not there: no fault is taken. An aligned 1, 2, 4 or 8 bytes are
 * one store.
 */
int nv_copy_in(unsigned long to, const void *from, size_t len)
{
	int err;

	if (!access_ok((void __user *)to, len))
		return -EFAULT;
	if (IS_ALIGNED(to, len)) {
		switch (len) {
		case 1:
			return NV_PUT(u8);
		case 2:
			return NV_PUT(u16);
		case 4:
			return NV_PUT(u32);
		case 8:
			return NV_PUT(u64);
		}
	}
	return copy_to_user_nofault((void __user *)to, from, len);
}

/* C: as above, the other way. */
int nv_copy_out(void *to, unsigned long from, size_t len)
{
	int err;

	if (!access_ok((void __user *)from, len))
		return -EFAULT;
	if (IS_ALIGNED(from, len)) {
		switch (len) {
		case 1:
			return NV_GET(u8);
		case 2:
			return NV_GET(u16);
		case 4:
			return NV_GET(u32);
		case 8:
			return NV_GET(u64);
		}
	}
	return copy_from_user_nofault(to, (void __user *)from, len);
}
