/* SPDX-License-Identifier: GPL-2.0 */
/* What C keeps of one card; Rust holds a reference to it and looks at nothing inside. */
#ifndef NETVM_CARD_H
#define NETVM_CARD_H

#include <linux/atomic.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/pci.h>

#include "shim.h"

struct nv_card {
	struct kref refs;
	struct pci_dev *pdev;
	/* Registers with the bell. */
	void __iomem *bell;
	/* NIC memory. */
	void __iomem *bar;
	resource_size_t bar_bytes;
	bool dma_beside;
	/* Signalled by the card's interrupt. */
	struct nv_event *interrupt;
	struct task_struct *thread;
	/* Why the thread rests (NV_REST_*), and what changes that. */
	struct mutex rest_lock;
	unsigned int rests;
	/* The card was silent as the thread went to rest: it uses no memory of this host. */
	bool silent;
	/* /dev/netvmN, while the card is attached. */
	struct miscdevice misc;
	char name[16];
	u32 number;
	/* The Rust half's card, for files that are opened. */
	void *rust;
	/* Open files, to take their mappings away and to end their ports when the card goes. */
	struct mutex files_lock;
	struct list_head files;
	/* Files that are not in the list any more and whose ports have not ended yet. */
	atomic_t closing;
	/* Taken to read by a page fault in a mapping, to write by what takes all mappings away. */
	struct rw_semaphore mappings;
	/* NIC memory is in no mapping any more. */
	bool revoked;
};

#endif
