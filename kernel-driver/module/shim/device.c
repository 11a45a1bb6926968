// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/netvmN. C, because 6.12's `kernel` crate has no misc devices, no file operations and no
 * VMAs. All that is decided here is that a mapping is neither inherited, nor grown, nor dumped.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/idr.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/wait_bit.h>

#include "card.h"

static DEFINE_IDA(nv_numbers);

static unsigned int ports_per_user;
module_param(ports_per_user, uint, 0644);
MODULE_PARM_DESC(ports_per_user, "open ports that a user may have, without CAP_SYS_RESOURCE; 0: half of a card's");

static unsigned int reserved_ports;
module_param(reserved_ports, uint, 0444);
MODULE_PARM_DESC(reserved_ports, "port numbers from 1 to this one need CAP_NET_ADMIN; 0: none does");

/* An open file; a mapping of it keeps it open. */
struct nv_file {
	struct list_head others;
	struct file *file;
	struct nv_card *card;
	void *rust;
	/* What the process sees in place of NIC memory that has gone. */
	struct page *dummy;
};

static int nv_open(struct inode *inode, struct file *file)
{
	struct nv_card *card = container_of(file->private_data, struct nv_card, misc);
	struct nv_file *ours = kzalloc(sizeof(*ours), GFP_KERNEL_ACCOUNT);

	if (!ours)
		return -ENOMEM;
	ours->rust = nv_rs_open(card->rust, file->f_mode & FMODE_WRITE);
	if (!ours->rust) {
		kfree(ours);
		return -ENOMEM;
	}
	nv_card_get(card);
	ours->card = card;
	ours->file = file;
	file->private_data = ours;
	mutex_lock(&card->files_lock);
	list_add(&ours->others, &card->files);
	mutex_unlock(&card->files_lock);
	return nonseekable_open(inode, file);
}

static int nv_release(struct inode *inode, struct file *file)
{
	struct nv_file *ours = file->private_data;
	struct nv_card *card = ours->card;

	mutex_lock(&card->files_lock);
	list_del(&ours->others);
	atomic_inc(&card->closing);
	mutex_unlock(&card->files_lock);
	nv_rs_release(ours->rust);
	if (atomic_dec_and_test(&card->closing))
		wake_up_var(&card->closing);
	/* No mapping is left: each keeps the file open. */
	if (ours->dummy)
		__free_page(ours->dummy);
	nv_card_put(card);
	kfree(ours);
	return 0;
}

static long nv_ioctl(struct file *file, unsigned int number, unsigned long argument)
{
	struct nv_file *ours = file->private_data;

	return nv_rs_ioctl(ours->rust, number, argument);
}

static int nv_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct nv_file *ours = file->private_data;

	return nv_rs_mmap(ours->rust, vma, (u64)vma->vm_pgoff << PAGE_SHIFT,
			  vma->vm_end - vma->vm_start);
}

static const struct file_operations nv_operations = {
	.owner = THIS_MODULE,
	.open = nv_open,
	.release = nv_release,
	.unlocked_ioctl = nv_ioctl,
	/* The arguments are the same for 32-bit callers. */
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = nv_mmap,
};

/* C: module_param is a macro. */
u32 nv_ports_per_user(void)
{
	return READ_ONCE(ports_per_user);
}

/* C: as above. */
u32 nv_reserved_ports(void)
{
	return READ_ONCE(reserved_ports);
}

/* C: no binding. The calling thread's user, in the first namespace. */
u32 nv_user(void)
{
	return from_kuid(&init_user_ns, current_uid());
}

/* C: `kernel` has no capabilities. Reserved numbers, too. */
bool nv_may_take_any_port(void)
{
	return capable(CAP_NET_ADMIN);
}

/* C: as above. More than a user's share. */
bool nv_may_take_all_ports(void)
{
	return capable(CAP_SYS_RESOURCE);
}

/* C: as above. Counters and addresses of other users' processes. */
bool nv_may_see_addresses(void)
{
	return perfmon_capable();
}

/* C: misc_register takes structures of callbacks. */
int nv_device_add(struct nv_card *card, void *rust)
{
	int number = ida_alloc_max(&nv_numbers, 255, GFP_KERNEL);
	int err;

	if (number < 0)
		return number;
	card->number = number;
	card->rust = rust;
	snprintf(card->name, sizeof(card->name), "netvm%d", number);
	card->misc = (struct miscdevice){
		.minor = MISC_DYNAMIC_MINOR,
		.name = card->name,
		.fops = &nv_operations,
		.parent = &card->pdev->dev,
		/* Root's, until a udev rule gives it to a group (../99-netvm.rules). */
		.mode = 0660,
	};
	err = misc_register(&card->misc);
	if (err)
		ida_free(&nv_numbers, number);
	return err;
}

/* C: as above. No file is opened any more. */
void nv_device_close(struct nv_card *card)
{
	misc_deregister(&card->misc);
	ida_free(&nv_numbers, card->number);
}

/*
 * C: mappings. No process sees NIC memory when it returns, and none will.
 *
 * A page fault looks at `revoked` and maps under the same lock. So one that saw it unset has mapped
 * its page before the lock is taken here, and that page is taken away below; one that comes later
 * sees it set. A mapping that is being made has no page yet.
 */
void nv_device_revoke(struct nv_card *card)
{
	struct nv_file *ours;

	down_write(&card->mappings);
	card->revoked = true;
	up_write(&card->mappings);
	mutex_lock(&card->files_lock);
	list_for_each_entry(ours, &card->files, others)
		unmap_mapping_range(ours->file->f_mapping, 0, 0, 1);
	mutex_unlock(&card->files_lock);
}

/*
 * C: walks a list of C. Ends the ports of all open files, and waits for those that are being closed:
 * a file counts as closing before it leaves the list.
 */
void nv_device_end_files(struct nv_card *card)
{
	struct nv_file *ours;

	mutex_lock(&card->files_lock);
	list_for_each_entry(ours, &card->files, others)
		nv_rs_end(ours->rust);
	mutex_unlock(&card->files_lock);
	wait_var_event(&card->closing, !atomic_read(&card->closing));
}

/* C: reads a structure of C. */
u32 nv_device_number(const struct nv_card *card)
{
	return card->number;
}

/* The frame of a fault: `vm_private_data` is how much page offsets are ahead of frames. */
static unsigned long nv_frame(const struct vm_fault *vmf)
{
	return vmf->pgoff - (unsigned long)vmf->vma->vm_private_data;
}

/*
 * The page that stands in for NIC memory that has gone: one for each file, made at its first fault.
 * Without `files_lock`: the caller holds its mmap_lock, and files end under that lock, which waits for
 * mmap_lock.
 */
static struct page *nv_dummy(struct nv_file *ours)
{
	struct page *page = READ_ONCE(ours->dummy);
	struct page *first;

	if (page)
		return page;
	page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!page)
		return NULL;
	first = cmpxchg(&ours->dummy, NULL, page);
	if (!first)
		return page;
	__free_page(page);
	return first;
}

/* A page of NIC memory; when that has gone, one that nothing else sees. */
static vm_fault_t nv_bar_fault(struct vm_fault *vmf)
{
	struct nv_file *ours = vmf->vma->vm_file->private_data;
	struct nv_card *card = ours->card;
	struct page *dummy;
	vm_fault_t result;

	down_read(&card->mappings);
	if (!card->revoked) {
		result = vmf_insert_pfn(vmf->vma, vmf->address, nv_frame(vmf));
		up_read(&card->mappings);
		return result;
	}
	up_read(&card->mappings);
	dummy = nv_dummy(ours);
	if (!dummy)
		return VM_FAULT_OOM;
	return vmf_insert_pfn_prot(vmf->vma, vmf->address, page_to_pfn(dummy),
				   vm_get_page_prot(vmf->vma->vm_flags));
}

/* A page of the driver's memory, which stays as long as a file is open. */
static vm_fault_t nv_memory_fault(struct vm_fault *vmf)
{
	return vmf_insert_pfn(vmf->vma, vmf->address, nv_frame(vmf));
}

static const struct vm_operations_struct nv_bar_operations = { .fault = nv_bar_fault };
static const struct vm_operations_struct nv_memory_operations = { .fault = nv_memory_fault };

static void nv_vma_private(struct vm_area_struct *vma, unsigned long frame, bool write)
{
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	if (!write)
		vm_flags_clear(vma, VM_MAYWRITE);
	vm_flags_clear(vma, VM_MAYEXEC);
	vma->vm_private_data = (void *)(vma->vm_pgoff - frame);
}

/* C: VMAs. A part of NIC memory, uncached: stores arrive in their order. */
void nv_map_bar(struct nv_card *card, struct vm_area_struct *vma, u64 offset)
{
	nv_vma_private(vma, PHYS_PFN(pci_resource_start(card->pdev, 2) + offset), true);
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	vma->vm_ops = &nv_bar_operations;
}

/* C: VMAs. A part of the driver's memory, to be read. */
void nv_map_memory(struct vm_area_struct *vma, void *at, u64 offset)
{
	nv_vma_private(vma, page_to_pfn(virt_to_page(at)) + (offset >> PAGE_SHIFT), false);
	vma->vm_ops = &nv_memory_operations;
}

/* C: VMAs. */
bool nv_vma_is_shared(const struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_SHARED;
}

/* C: VMAs. */
bool nv_vma_wants_write(const struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_WRITE;
}
