// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Frames in a row: taking them from huge pages of the same process, keeping
 * background work off those that are in use, and how many there are.
 */
#include <linux/mm.h>
#include <linux/compaction.h>
#include <linux/cpuset.h>
#include <linux/huge_mm.h>
#include <linux/hugetlb.h>
#include <linux/memory_hotplug.h>
#include <linux/mmzone.h>
#include <linux/mutex.h>
#include <linux/page-isolation.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/steer.h>
#include <linux/vmalloc.h>
#include <linux/vmstat.h>

#include "internal.h"

/* Huge pages that are tried to be parted and moved away, in one call. */
#define TAKE_TRIES	4

/* Who takes frames from others, one at a time. */
static struct task_struct *taker;
static DEFINE_MUTEX(takes);

/**
 * steer_takes - whether the caller has others' pages moved out of its way
 *
 * These may be bound to their node, or belong to who may use no other.
 *
 * Return: true if pages must not leave the node that they are on.
 */
bool steer_takes(void)
{
	return READ_ONCE(taker) == current;
}

/*
 * The next huge page of a process on this node from @cursor on, of anonymous
 * memory that nobody shares, with a reference.  NULL at the end of its memory,
 * where the cursor begins anew, and when somebody wants to change that memory.
 */
static struct folio *next_huge(struct mm_struct *mm, int nid,
			       unsigned long *cursor)
{
	struct vm_area_struct *vma;
	struct folio *huge = NULL;
	unsigned long addr;

	VMA_ITERATOR(vmi, mm, *cursor);

	mmap_read_lock(mm);
	for_each_vma(vmi, vma) {
		if (!vma_is_anonymous(vma) || !vma->anon_vma)
			continue;
		addr = max(*cursor, ALIGN(vma->vm_start, HPAGE_PMD_SIZE));
		for (; addr + HPAGE_PMD_SIZE <= vma->vm_end; addr += HPAGE_PMD_SIZE) {
			struct folio_walk fw;
			struct folio *folio;

			if (mmap_lock_is_contended(mm))
				goto unlock;
			cond_resched();
			folio = folio_walk_start(&fw, vma, addr, 0);
			if (!folio)
				continue;
			if (fw.level == FW_LEVEL_PMD &&
			    folio_nid(folio) == nid && folio_test_anon(folio) &&
			    !folio_likely_mapped_shared(folio) &&
			    !folio_maybe_dma_pinned(folio) &&
			    !steer_shielded(folio_pfn(folio))) {
				folio_get(folio);
				huge = folio;
			}
			folio_walk_end(&fw, vma);
			if (huge) {
				addr += HPAGE_PMD_SIZE;
				goto unlock;
			}
		}
	}
	addr = 0;
unlock:
	mmap_read_unlock(mm);
	*cursor = addr;
	return huge;
}

/*
 * Parts a huge page: small pages need no row to go to, which would be as hard
 * to get as this one.  Its node has frames for them: nothing is reclaimed for
 * it.
 */
static bool part(struct folio *folio)
{
	struct zone *zone = folio_zone(folio);
	struct page *page = &folio->page;
	bool parted;

	if (is_migrate_cma_page(page) || is_migrate_isolate_page(page))
		return false;
	/* What the first try of an allocation for any zone asks for. */
	if (!zone_watermark_ok(zone, 0, low_wmark_pages(zone) + 2 * HPAGE_PMD_NR,
			       max_t(int, zone_idx(zone), ZONE_NORMAL), 0))
		return false;
	if (!folio_trylock(folio))
		return false;
	parted = folio_order(folio) == HPAGE_PMD_ORDER && !steer_split(folio);
	folio_unlock(folio);
	return parted;
}

/**
 * steer_take_block - get consecutive frames where none are free
 * @mm: the process to take them of; a reference to its users is held
 * @nid: the node to have them of
 * @cursor: where in its memory to go on looking; the caller's, 0 at first
 *
 * A huge page of the process gives way: its contents go to frames of the node
 * that are free one by one.  For a caller who has more use for a row elsewhere
 * in the same memory; nobody else's is chosen.
 *
 * Return: the first of 512 pages of order 0 that the caller has allocated now,
 * aligned to their number; NULL if a few tries found none.
 */
struct page *steer_take_block(struct mm_struct *mm, int nid,
			      unsigned long *cursor)
{
	bool anew = !*cursor;
	unsigned int tries;

	if (!node_isset(nid, cpuset_current_mems_allowed))
		return NULL;
	for (tries = 0; tries < TAKE_TRIES; tries++) {
		struct folio *folio = next_huge(mm, nid, cursor);
		unsigned long pfn;
		bool parted;
		int err;

		if (!folio && (anew || *cursor))
			break;
		if (!folio) {
			anew = true;
			continue;
		}
		pfn = folio_pfn(folio);
		parted = part(folio);
		folio_put(folio);
		if (!parted)
			continue;
		mutex_lock(&takes);
		WRITE_ONCE(taker, current);
		err = alloc_contig_range(pfn, pfn + HPAGE_PMD_NR, MIGRATE_MOVABLE,
					 GFP_KERNEL | __GFP_NOWARN);
		WRITE_ONCE(taker, NULL);
		mutex_unlock(&takes);
		if (!err)
			return pfn_to_page(pfn);
		/* The next would fare no better: no memory, or a signal. */
		if (err != -EBUSY)
			break;
	}
	return NULL;
}
EXPORT_SYMBOL_GPL(steer_take_block);

/*
 * A bit per huge page frame.  Its pages are in a row for somebody, although no
 * huge page of the process says so: background work that makes huge pages or
 * room for them would undo more than it does.
 */
static unsigned long *shields __read_mostly;
/* Memory that is added later has none, and raises max_pfn. */
static unsigned long shields_end __read_mostly;

static int __init shields_init(void)
{
	shields = vzalloc(BITS_TO_LONGS((max_pfn >> HPAGE_PMD_ORDER) + 1) *
			  sizeof(*shields));
	if (!shields)
		return -ENOMEM;
	shields_end = max_pfn;
	return 0;
}
core_initcall(shields_init);

/**
 * steer_shield - keep khugepaged and compaction off a huge page frame
 * @pfn: any pfn of it, of memory that was there at boot
 *
 * Reclaim, and whoever needs this very frame, move its pages nevertheless.
 */
void steer_shield(unsigned long pfn)
{
	if (pfn < shields_end)
		set_bit(pfn >> HPAGE_PMD_ORDER, shields);
}
EXPORT_SYMBOL_GPL(steer_shield);

/**
 * steer_unshield - the end of steer_shield()
 * @pfn: any pfn of the frame
 */
void steer_unshield(unsigned long pfn)
{
	if (pfn < shields_end)
		clear_bit(pfn >> HPAGE_PMD_ORDER, shields);
}
EXPORT_SYMBOL_GPL(steer_unshield);

/**
 * steer_shielded - whether to keep off a huge page frame
 * @pfn: any pfn of it
 *
 * Return: true between steer_shield() and steer_unshield().
 */
bool steer_shielded(unsigned long pfn)
{
	return pfn < shields_end &&
	       test_bit(pfn >> HPAGE_PMD_ORDER, shields);
}

/**
 * steer_fragmentation - free memory that is of no use for an allocation
 * @order: the allocation's order
 *
 * Return: per cent of the free memory of all zones that lies in blocks smaller
 * than @order (the unusable free space index).
 */
int steer_fragmentation(unsigned int order)
{
	unsigned long all = 0, unusable = 0;
	struct zone *zone;

	for_each_populated_zone(zone) {
		unsigned long free = zone_page_state(zone, NR_FREE_PAGES);

		all += free;
		unusable += free * extfrag_for_order(zone, order) / 100;
	}
	return all ? unusable * 100 / all : 100;
}
EXPORT_SYMBOL_GPL(steer_fragmentation);
