// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/netvmN. C, because 6.12's `kernel` crate has no misc devices, no file operations and no
 * VMAs. All that is decided here is that a mapping is neither inherited, nor grown, nor dumped.
 */
#include <linux/capability.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "card.h"

static DEFINE_IDA(nv_numbers);

/* An open file; a mapping of it keeps it open. */
struct nv_file {
	struct list_head others;
	struct file *file;
	struct nv_card *card;
	void *rust;
};

static int nv_open(struct inode *inode, struct file *file)
{
	struct nv_card *card = container_of(file->private_data, struct nv_card, misc);
	struct nv_file *ours = kzalloc(sizeof(*ours), GFP_KERNEL);

	if (!ours)
		return -ENOMEM;
	ours->rust = nv_rs_open(card->rust);
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
	mutex_unlock(&card->files_lock);
	nv_rs_release(ours->rust);
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

/* Addresses of other processes are told to those who may profile them. `kernel` has no capabilities. */
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
		.mode = 0666,
	};
	err = misc_register(&card->misc);
	if (err)
		ida_free(&nv_numbers, number);
	return err;
}

/* C: as above. Nothing of the card is mapped anywhere when it returns. */
void nv_device_remove(struct nv_card *card)
{
	struct nv_file *ours;

	misc_deregister(&card->misc);
	mutex_lock(&card->files_lock);
	list_for_each_entry(ours, &card->files, others)
		unmap_mapping_range(ours->file->f_mapping, 0, 0, 1);
	mutex_unlock(&card->files_lock);
	ida_free(&nv_numbers, card->number);
}

/* C: reads a structure of C. */
u32 nv_device_number(const struct nv_card *card)
{
	return card->number;
}

static void nv_vma_private(struct vm_area_struct *vma, bool write)
{
	vm_flags_set(vma, VM_IO | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	if (!write)
		vm_flags_clear(vma, VM_MAYWRITE);
	vm_flags_clear(vma, VM_MAYEXEC);
}

/* C: VMAs. A part of NIC memory, uncached: stores arrive in their order. */
int nv_map_bar(struct nv_card *card, struct vm_area_struct *vma, u64 offset, u64 len)
{
	phys_addr_t at = pci_resource_start(card->pdev, 2) + offset;

	nv_vma_private(vma, true);
	vma->vm_page_prot = pgprot_noncached(vma->vm_page_prot);
	return io_remap_pfn_range(vma, vma->vm_start, PHYS_PFN(at), len, vma->vm_page_prot);
}

/* C: VMAs. A part of the driver's memory, to be read. */
int nv_map_memory(struct nv_card *card, struct vm_area_struct *vma, void *at, u64 bus, u64 size,
		  u64 offset, u64 len)
{
	unsigned long pgoff = vma->vm_pgoff;
	int err;

	nv_vma_private(vma, false);
	vma->vm_pgoff = offset >> PAGE_SHIFT;
	err = dma_mmap_coherent(&card->pdev->dev, vma, at, bus, size);
	vma->vm_pgoff = pgoff;
	return err;
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
