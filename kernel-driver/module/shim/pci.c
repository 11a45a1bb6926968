// SPDX-License-Identifier: GPL-2.0
/*
 * The card on its bus: probe, BARs, interrupt, DMA. C, because 6.12's `kernel` crate binds none
 * of PCI, MMIO, DMA mapping or request_irq; all of these are inline functions, macros or
 * structures of callbacks.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/gfp.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pm.h>
#include <linux/slab.h>
#include <linux/swap.h>

#include "card.h"

static unsigned int deadline_ms = 10;
module_param(deadline_ms, uint, 0444);
MODULE_PARM_DESC(deadline_ms, "a card that keeps a page, or an answer, longer is dead (1 to 10000 ms)");

static unsigned int heartbeat_ms = 1000;
module_param(heartbeat_ms, uint, 0444);
MODULE_PARM_DESC(heartbeat_ms, "a card whose heartbeat stands still longer is dead (10 to 600000 ms)");

static unsigned int page_ms = 30000;
module_param(page_ms, uint, 0444);
MODULE_PARM_DESC(page_ms, "a message whose page does not come within this time fails (100 to 3600000 ms)");

/*
 * An invalidation waits for a card as long as this, and the kernel's memory reclaim with it. An
 * eighth of a deadline is the step in which time counts.
 */
#define NV_DEADLINES_MS 10000
#define NV_HEARTBEAT_MIN_MS 10
#define NV_HEARTBEAT_MAX_MS 600000
#define NV_PAGE_MIN_MS 100
#define NV_PAGE_MAX_MS 3600000

/* Memory of the card, and the bell that interrupts it. */
#define NV_BELL_BAR 0
#define NV_MEMORY_BAR 2
#define NV_BELL_REGISTER 12
/* The card's number at QEMU's ivshmem server, its first vector: a message to ring it with. */
#define NV_BELL_MESSAGE (1u << 16)

/* The card's DMA goes past the PCI function: to turn its bus mastering off proves nothing. */
#define NV_DMA_BESIDE 1

/*
 * QEMU's ivshmem-doorbell: a card of the rig, whose firmware runs in another machine. Any virtual
 * machine may have such a device for a purpose of its own, and nothing in its configuration space
 * tells them apart. So it is claimed only where its `driver_override` names this driver, and there is
 * no MODULE_DEVICE_TABLE, by which it would load the module.
 */
static const struct pci_device_id nv_ids[] = {
	{ PCI_DEVICE(0x1af4, 0x1110), .driver_data = NV_DMA_BESIDE, .override_only = 1 },
	{ }
};

/* C: module_param is a macro. */
unsigned int nv_deadline_ms(void)
{
	return deadline_ms;
}

/* C: as above. */
unsigned int nv_heartbeat_ms(void)
{
	return heartbeat_ms;
}

/* C: as above. */
unsigned int nv_page_ms(void)
{
	return page_ms;
}

static void nv_card_release(struct kref *refs)
{
	struct nv_card *card = container_of(refs, struct nv_card, refs);

	nv_event_free(card->interrupt);
	pci_dev_put(card->pdev);
	kfree(card);
}

/* C: kref is inline. */
void nv_card_get(struct nv_card *card)
{
	kref_get(&card->refs);
}

/* C: as above. */
void nv_card_put(struct nv_card *card)
{
	kref_put(&card->refs, nv_card_release);
}

/* C: reads a structure of C. */
u32 nv_bar_words(const struct nv_card *card)
{
	return card->bar_bytes / sizeof(u32);
}

/* C: readl is inline assembly. The caller checks the bounds. */
u32 nv_bar_load(const struct nv_card *card, u32 word)
{
	return readl(card->bar + (size_t)word * sizeof(u32));
}

/* C: writel is inline assembly. The caller checks the bounds. */
void nv_bar_store(struct nv_card *card, u32 word, u32 value)
{
	writel(value, card->bar + (size_t)word * sizeof(u32));
}

/* C: mb() is inline assembly; it orders MMIO too, which `core`'s fence does not promise. */
void nv_barrier(void)
{
	mb();
}

/* C: as nv_bar_store. Everything stored before is visible before the bell is heard (writel). */
void nv_card_ring(struct nv_card *card)
{
	writel(NV_BELL_MESSAGE, card->bell + NV_BELL_REGISTER);
}

/*
 * C: pci_clear_master and config space. Turns the card's bus mastering off; true where it is
 * certain that no DMA is left. Does not sleep: an invalidation that may not block calls it.
 */
bool nv_card_stop(struct nv_card *card)
{
	int tries;
	u16 status;

	pci_clear_master(card->pdev);
	if (card->dma_beside || !pci_is_pcie(card->pdev))
		return false;
	for (tries = 0; tries < 1000; tries++) {
		if (pcie_capability_read_word(card->pdev, PCI_EXP_DEVSTA, &status) || status == 0xffff)
			return false;
		if (!(status & PCI_EXP_DEVSTA_TRPND))
			return true;
		udelay(10);
	}
	return false;
}

/* C: pci_set_master. */
void nv_card_start(struct nv_card *card)
{
	pci_set_master(card->pdev);
}

/* C: writes a structure of C. The card's thread says what it has found before it rests. */
void nv_card_rests(struct nv_card *card, bool silent)
{
	card->silent = silent;
}

/* C: reads a structure of C. */
struct nv_event *nv_card_interrupt(struct nv_card *card)
{
	return card->interrupt;
}

/*
 * Whether the card and the processors see a mapping differently, for want of coherence or because it
 * is a bounce buffer. With CONFIG_DMA_API_DEBUG, dma_need_sync() says so of every device behind an
 * IOMMU; what the DMA layer itself goes by is `dma_skip_sync`, which its first bounce buffer ends.
 */
static bool nv_needs_sync(struct device *dev, dma_addr_t at)
{
#ifdef CONFIG_DMA_NEED_SYNC
	if (dev->dma_skip_sync)
		return false;
#endif
	return dma_need_sync(dev, at);
}

/*
 * C: no DMA bindings. Zeroed, contiguous for the card; NULL where there is none.
 *
 * Ordinary pages with a mapping for the card, not dma_alloc_coherent: processes map these pages, and
 * may keep them when the card has gone, while coherent memory ends with the device. As for
 * application pages, a bus on which caches must be synchronized by hand will not do.
 */
void *nv_memory_alloc(struct nv_card *card, size_t bytes, u64 *bus)
{
	struct device *dev = &card->pdev->dev;
	void *memory = alloc_pages_exact(bytes, GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN);
	dma_addr_t at;

	if (!memory)
		return NULL;
	at = dma_map_page_attrs(dev, virt_to_page(memory), 0, bytes, DMA_BIDIRECTIONAL,
				DMA_ATTR_SKIP_CPU_SYNC);
	if (dma_mapping_error(dev, at))
		goto free;
	*bus = at;
	if (!nv_needs_sync(dev, at))
		return memory;
	nv_memory_unmap(card, bytes, at);
free:
	free_pages_exact(memory, bytes);
	return NULL;
}

/* C: as above. The card cannot reach the memory any more. */
void nv_memory_unmap(struct nv_card *card, size_t bytes, u64 bus)
{
	dma_unmap_page_attrs(&card->pdev->dev, bus, bytes, DMA_BIDIRECTIONAL,
			     DMA_ATTR_SKIP_CPU_SYNC);
}

/* C: as above. */
void nv_memory_free(size_t bytes, void *at)
{
	free_pages_exact(at, bytes);
}

/* A page that a process may only read is one that the card may only read: an IOMMU enforces it. */
static enum dma_data_direction nv_direction(bool writable)
{
	return writable ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

/*
 * C: dma_map_page is a macro. The bus address at which the card finds a page, or all ones: it
 * cannot reach it, or only through a bounce buffer of the DMA layer, which would not be the page.
 */
u64 nv_page_map(struct nv_card *card, unsigned long pfn, bool writable)
{
	struct device *dev = &card->pdev->dev;
	dma_addr_t bus = dma_map_page_attrs(dev, pfn_to_page(pfn), 0, PAGE_SIZE,
					    nv_direction(writable), DMA_ATTR_SKIP_CPU_SYNC);

	if (dma_mapping_error(dev, bus))
		return U64_MAX;
	if (nv_needs_sync(dev, bus)) {
		nv_page_unmap(card, bus, writable);
		return U64_MAX;
	}
	return bus;
}

/* C: as above. */
void nv_page_unmap(struct nv_card *card, u64 bus, bool writable)
{
	dma_unmap_page_attrs(&card->pdev->dev, bus, PAGE_SIZE, nv_direction(writable),
			     DMA_ATTR_SKIP_CPU_SYNC);
}

/*
 * C: pages and their flags. The page is mapped by a process (its invalidation has not ended), so
 * it stays while it is marked.
 */
void nv_page_mark(unsigned long pfn, bool dirty, bool referenced)
{
	struct page *page = pfn_to_page(pfn);

	if (is_zero_pfn(pfn))
		return;
	if (dirty)
		set_page_dirty(page);
	if (referenced)
		mark_page_accessed(page);
}

/* C: get_page is inline. The card may still use the page: it never goes back to the system. */
void nv_page_keep(unsigned long pfn)
{
	get_page(pfn_to_page(pfn));
}

static irqreturn_t nv_interrupted(int irq, void *with)
{
	struct nv_card *card = with;

	nv_event_signal(card->interrupt);
	return IRQ_HANDLED;
}

static int nv_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct nv_card *card;
	int err;

	if (!pci_find_capability(pdev, PCI_CAP_ID_MSIX) ||
	    pci_resource_len(pdev, NV_BELL_BAR) <= NV_BELL_REGISTER)
		return -ENODEV;
	card = kzalloc(sizeof(*card), GFP_KERNEL);
	if (!card)
		return -ENOMEM;
	kref_init(&card->refs);
	mutex_init(&card->files_lock);
	INIT_LIST_HEAD(&card->files);
	init_rwsem(&card->mappings);
	mutex_init(&card->rest_lock);
	card->pdev = pci_dev_get(pdev);
	card->dma_beside = id->driver_data & NV_DMA_BESIDE;
	card->interrupt = nv_event_new();
	err = card->interrupt ? 0 : -ENOMEM;
	if (!err)
		err = pcim_enable_device(pdev);
	if (!err)
		err = pcim_iomap_regions(pdev, BIT(NV_BELL_BAR) | BIT(NV_MEMORY_BAR), "netvm");
	if (!err)
		err = dma_set_mask_and_coherent(&pdev->dev, U64_MAX);
	if (err)
		goto fail;
	card->bell = pcim_iomap_table(pdev)[NV_BELL_BAR];
	card->bar = pcim_iomap_table(pdev)[NV_MEMORY_BAR];
	card->bar_bytes = pci_resource_len(pdev, NV_MEMORY_BAR);
	pci_set_master(pdev);
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);
	if (err < 0)
		goto fail;
	err = request_irq(pci_irq_vector(pdev, 0), nv_interrupted, 0, "netvm", card);
	if (err)
		goto vectors;
	/* What a reset of the slot is followed by. */
	pci_save_state(pdev);
	card->thread = nv_thread_start(nv_rs_card_body, card, "netvm-card", pci_dev_id(pdev));
	if (!card->thread) {
		err = -ENOMEM;
		goto irq;
	}
	pci_set_drvdata(pdev, card);
	return 0;
irq:
	free_irq(pci_irq_vector(pdev, 0), card);
vectors:
	pci_free_irq_vectors(pdev);
fail:
	nv_card_put(card);
	return dev_err_probe(&pdev->dev, err, "the card cannot be set up\n");
}

static void nv_remove(struct pci_dev *pdev)
{
	struct nv_card *card = pci_get_drvdata(pdev);

	/* A machine that shuts down takes the card from its driver, which stays bound to it. */
	if (!card)
		return;
	pci_set_drvdata(pdev, NULL);
	/*
	 * Its body takes the device away before it ends: no port is left, nothing is mapped for DMA,
	 * and no process sees NIC memory. Files that are open keep the rest of `card`.
	 */
	nv_thread_stop(card->thread);
	free_irq(pci_irq_vector(pdev, 0), card);
	pci_free_irq_vectors(pdev);
	pci_clear_master(pdev);
	nv_card_put(card);
}

/* Why the card's thread rests. It goes on when no reason is left. */
#define NV_REST_SLEEP BIT(0)
#define NV_REST_ERROR BIT(1)
#define NV_REST_RESET BIT(2)

/*
 * Has the card's thread withdraw the card from this host and rest. Returns whether the card is
 * certain to have let go. The core of the bus calls these with the device's lock held: the driver
 * neither comes nor goes meanwhile.
 */
static bool nv_rest(struct nv_card *card, unsigned int why)
{
	bool silent;

	mutex_lock(&card->rest_lock);
	if (!card->rests)
		kthread_park(card->thread);
	card->rests |= why;
	silent = card->silent;
	mutex_unlock(&card->rest_lock);
	return silent;
}

/* The reason is gone. */
static void nv_go_on(struct nv_card *card, unsigned int why)
{
	mutex_lock(&card->rest_lock);
	if (card->rests & why) {
		card->rests &= ~why;
		if (!card->rests)
			kthread_unpark(card->thread);
	}
	mutex_unlock(&card->rest_lock);
}

/*
 * The machine sleeps, or what is in its memory is written down (hibernation): a card that still
 * writes there would destroy it. One that cannot be silenced keeps the machine awake.
 */
static int nv_suspend(struct device *dev)
{
	struct nv_card *card = dev_get_drvdata(dev);

	if (!card || nv_rest(card, NV_REST_SLEEP))
		return 0;
	nv_go_on(card, NV_REST_SLEEP);
	dev_err(dev, "the card may still write to this host's memory: the machine must not sleep\n");
	return -EBUSY;
}

static int nv_resume(struct device *dev)
{
	struct nv_card *card = dev_get_drvdata(dev);

	if (card)
		nv_go_on(card, NV_REST_SLEEP);
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(nv_sleep, nv_suspend, nv_resume);

/*
 * The bus has lost something that was on its way, perhaps a word of the page table: whatever kind
 * of error it is, the card has to begin anew.
 */
static pci_ers_result_t nv_error(struct pci_dev *pdev, pci_channel_state_t state)
{
	struct nv_card *card = pci_get_drvdata(pdev);

	if (!card)
		return PCI_ERS_RESULT_DISCONNECT;
	pci_err(pdev, "an error on the bus: the card is withdrawn\n");
	nv_rest(card, NV_REST_ERROR);
	return state == pci_channel_io_perm_failure ? PCI_ERS_RESULT_DISCONNECT :
						      PCI_ERS_RESULT_NEED_RESET;
}

static pci_ers_result_t nv_slot_reset(struct pci_dev *pdev)
{
	pci_restore_state(pdev);
	/* To be restored once more. */
	pci_save_state(pdev);
	return PCI_ERS_RESULT_RECOVERED;
}

static void nv_error_over(struct pci_dev *pdev)
{
	struct nv_card *card = pci_get_drvdata(pdev);

	if (card)
		nv_go_on(card, NV_REST_ERROR);
}

static void nv_before_reset(struct pci_dev *pdev)
{
	struct nv_card *card = pci_get_drvdata(pdev);

	if (card)
		nv_rest(card, NV_REST_RESET);
}

static void nv_after_reset(struct pci_dev *pdev)
{
	struct nv_card *card = pci_get_drvdata(pdev);

	if (card)
		nv_go_on(card, NV_REST_RESET);
}

static const struct pci_error_handlers nv_errors = {
	.error_detected = nv_error,
	.slot_reset = nv_slot_reset,
	.resume = nv_error_over,
	.reset_prepare = nv_before_reset,
	.reset_done = nv_after_reset,
};

static struct pci_driver nv_driver = {
	.name = "netvm",
	.id_table = nv_ids,
	.probe = nv_probe,
	.remove = nv_remove,
	/* A kernel that is started next (kexec) must not find a card that writes to this one's memory. */
	.shutdown = nv_remove,
	.err_handler = &nv_errors,
	.driver.pm = pm_sleep_ptr(&nv_sleep),
	/* Ports may be open: the driver lets go of a card when the module goes, or the card. */
	.driver.suppress_bind_attrs = true,
};

/* C: pci_register_driver is a macro over a structure of callbacks. */
int nv_pci_register(void)
{
	if (!deadline_ms || deadline_ms > NV_DEADLINES_MS) {
		pr_err("netvm: deadline_ms=%u: from 1 to %u\n", deadline_ms, NV_DEADLINES_MS);
		return -EINVAL;
	}
	if (heartbeat_ms < NV_HEARTBEAT_MIN_MS || heartbeat_ms > NV_HEARTBEAT_MAX_MS) {
		pr_err("netvm: heartbeat_ms=%u: from %u to %u\n", heartbeat_ms,
		       NV_HEARTBEAT_MIN_MS, NV_HEARTBEAT_MAX_MS);
		return -EINVAL;
	}
	if (page_ms < NV_PAGE_MIN_MS || page_ms > NV_PAGE_MAX_MS) {
		pr_err("netvm: page_ms=%u: from %u to %u\n", page_ms, NV_PAGE_MIN_MS, NV_PAGE_MAX_MS);
		return -EINVAL;
	}
	return pci_register_driver(&nv_driver);
}

/* C: as above. */
void nv_pci_unregister(void)
{
	pci_unregister_driver(&nv_driver);
}
