// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Putting the pages behind user addresses onto chosen frames.
 *
 * Migration that is told where to go, frame by frame, as move_pages(2) is told
 * a node.  For a hypervisor that wants pages of a guest, scattered over the
 * addresses of its process, to be consecutive in physical memory.
 *
 * Contents, mappings, charges and MMU notifiers are the business of
 * migrate_pages(): nothing is lost, and what cannot be moved stays.
 */
#include <linux/mm.h>
#include <linux/bsearch.h>
#include <linux/cpuset.h>
#include <linux/huge_mm.h>
#include <linux/ksm.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
#include <linux/migrate.h>
#include <linux/mm_inline.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/oom.h>
#include <linux/pagewalk.h>
#include <linux/rmap.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/steer.h>
#include <linux/swap.h>
#include <linux/userfaultfd_k.h>

#include "internal.h"

/* A page on its way to a frame. */
struct passenger {
	struct folio *folio;
	struct page *frame;
	unsigned int index;
	bool boarded;	/* migration has the frame */
};

struct passage {
	unsigned int nr;
	struct passenger list[] __counted_by(nr);
};

static int by_folio(const void *a, const void *b)
{
	const struct passenger *x = a, *y = b;

	return x->folio < y->folio ? -1 : x->folio > y->folio;
}

static struct folio *chosen_frame(struct folio *src, unsigned long private)
{
	struct passage *passage = (struct passage *)private;
	struct passenger wanted = { .folio = src }, *found;

	found = bsearch(&wanted, passage->list, passage->nr, sizeof(wanted),
			by_folio);
	if (WARN_ON_ONCE(!found || found->boarded))
		return NULL;
	found->boarded = true;
	return page_folio(found->frame);
}

/* Migration failed, now or until it tries again: the frame is ours. */
static void return_frame(struct folio *dst, unsigned long private)
{
	struct passage *passage = (struct passage *)private;
	unsigned int i;

	for (i = 0; i < passage->nr; i++) {
		if (page_folio(passage->list[i].frame) == dst) {
			passage->list[i].boarded = false;
			return;
		}
	}
	WARN_ON_ONCE(1);
}

/* Memory whose pages may be moved without asking anyone. */
static struct vm_area_struct *steerable(struct mm_struct *mm, unsigned long addr)
{
	struct vm_area_struct *vma = vma_lookup(mm, addr);

	if (!vma || is_vm_hugetlb_page(vma) ||
	    (vma->vm_flags & (VM_IO | VM_PFNMAP | VM_MIXEDMAP)))
		return NULL;
	return vma_is_anonymous(vma) || vma_is_shmem(vma) ? vma : NULL;
}

/*
 * Whether memory may have frames of a node.  The cpuset, and the policy of what
 * has none of its own, is that of the process, whom a caller works for.
 */
#ifdef CONFIG_NUMA
static bool may_be_on(struct vm_area_struct *vma, unsigned long addr, int nid)
{
	struct mempolicy *policy;
	pgoff_t ilx;
	bool may;

	if (!node_isset(nid, cpuset_current_mems_allowed))
		return false;
	policy = get_vma_policy(vma, addr, 0, &ilx);
	may = policy->mode != MPOL_BIND || node_isset(nid, policy->nodes);
	mpol_cond_put(policy);
	return may;
}
#else
static bool may_be_on(struct vm_area_struct *vma, unsigned long addr, int nid)
{
	return true;
}
#endif

/* Who splits a huge page here, one at a time. */
static struct task_struct *splitter;
static DEFINE_MUTEX(splits);

/**
 * steer_splits - whether the caller splits a huge page to steer a part of it
 *
 * Splitting otherwise gives the empty parts of anonymous memory back.  A guest
 * that had them would fault twice for each it comes to use: once for a page,
 * once to have it mapped.
 *
 * Return: true if the parts are to stay as they are.
 */
bool steer_splits(void)
{
	return READ_ONCE(splitter) == current;
}

/**
 * steer_split - split a huge page, and keep its parts as they are
 * @folio: the huge page, locked
 *
 * Return: 0, or what split_folio() fails with.
 */
int steer_split(struct folio *folio)
{
	int err;

	mutex_lock(&splits);
	WRITE_ONCE(splitter, current);
	err = split_folio(folio);
	WRITE_ONCE(splitter, NULL);
	mutex_unlock(&splits);
	return err;
}

/*
 * Migration unmaps pages before it finds that they are pinned; and nobody wins
 * by parting what was merged.
 */
static bool movable(struct folio *folio)
{
	return !folio_is_zone_device(folio) && !folio_test_ksm(folio) &&
	       !folio_maybe_dma_pinned(folio);
}

/*
 * Isolates the page at @addr, to go to node @nid, and gives it in @folio.
 * -ENOENT: there is none, or none of its own; -EAGAIN: something was done about
 * it, look again; -EBUSY: not now.
 */
static int isolate_one(struct mm_struct *mm, unsigned long addr, int nid,
		       struct folio **folio)
{
	struct vm_area_struct *vma = steerable(mm, addr);
	struct folio_walk fw;
	struct folio *found;
	int err = -EBUSY;

	if (!vma || !may_be_on(vma, addr, nid))
		return -EINVAL;
	found = folio_walk_start(&fw, vma, addr, FW_ZEROPAGE);
	if (!found)
		return -ENOENT;
	if (is_zero_folio(found)) {
		/* Read, but never written; or what others' splits leave. */
		err = -ENOENT;
	} else if (is_huge_zero_folio(found) || !movable(found)) {
		err = -EINVAL;
	} else if (folio_test_large(found)) {
		folio_get(found);
		folio_walk_end(&fw, vma);
		if (folio_trylock(found)) {
			err = steer_split(found) ? -EBUSY : -EAGAIN;
			folio_unlock(found);
		}
		folio_put(found);
		return err;
	} else if (folio_isolate_lru(found)) {
		node_stat_mod_folio(found, NR_ISOLATED_ANON +
				    folio_is_file_lru(found), 1);
		*folio = found;
		err = 0;
	}
	folio_walk_end(&fw, vma);
	return err;
}

/*
 * Maps the zeroed @frame at @addr, where anonymous memory has nothing yet or
 * the page of zeroes that everybody shares: nothing needs to be copied.
 * -ENOMEM: the process may have no more memory.
 */
static int install_zeroed(struct mm_struct *mm, unsigned long addr,
			  struct page *frame)
{
	struct vm_area_struct *vma = vma_lookup(mm, addr);
	struct folio *folio = page_folio(frame);
	struct mmu_notifier_range range;
	int err = -EAGAIN;
	spinlock_t *ptl;
	pte_t *pte, old, new;
	pmd_t *pmd;

	if (!vma || !vma_is_anonymous(vma) || !(vma->vm_flags & VM_WRITE) ||
	    userfaultfd_armed(vma) || anon_vma_prepare(vma))
		return err;
	pmd = mm_find_pmd(mm, addr);
	if (!pmd)
		return err;
	/* Not worth killing anyone for: nobody has asked for the page yet. */
	if (mem_cgroup_charge(folio, mm, GFP_KERNEL | __GFP_NORETRY))
		return -ENOMEM;
	clear_user_highpage(frame, addr);
	__folio_mark_uptodate(folio);

	mmu_notifier_range_init(&range, MMU_NOTIFY_CLEAR, 0, mm, addr,
				addr + PAGE_SIZE);
	mmu_notifier_invalidate_range_start(&range);
	pte = pte_offset_map_lock(mm, pmd, addr, &ptl);
	if (!pte)
		goto end;
	old = ptep_get(pte);
	if (!pte_none(old) && !(pte_present(old) && is_zero_pfn(pte_pfn(old))))
		goto unlock;
	if (check_stable_address_space(mm))
		goto unlock;

	/* Nobody may read zeroes on while somebody else writes. */
	if (pte_present(old)) {
		ptep_clear_flush(vma, addr, pte);
		ksm_might_unmap_zero_page(mm, old);
	}
	new = pte_sw_mkyoung(mk_pte(frame, vma->vm_page_prot));
	new = pte_mkwrite(pte_mkdirty(new), vma);
	inc_mm_counter(mm, MM_ANONPAGES);
	folio_add_new_anon_rmap(folio, vma, addr, RMAP_EXCLUSIVE);
	folio_add_lru_vma(folio, vma);
	set_pte_at(mm, addr, pte, new);
	update_mmu_cache(vma, addr, pte);
	err = 0;
unlock:
	pte_unmap_unlock(pte, ptl);
end:
	mmu_notifier_invalidate_range_end(&range);
	if (err)
		mem_cgroup_uncharge(folio);
	return err;
}

/*
 * Brings in what is swapped out, or never was there and has no table either;
 * not what another process is to bring, for which one might wait for ever.
 * @frame is nobody's, and tries whether the process may have one page more: a
 * fault would not give up before somebody is killed.
 */
static bool fault_in(struct mm_struct *mm, unsigned long addr,
		     struct page *frame)
{
	struct vm_area_struct *vma = vma_lookup(mm, addr);
	struct folio *folio = page_folio(frame);
	struct page *page;
	int locked = 1;
	long got;

	if (!vma || userfaultfd_armed(vma) ||
	    mem_cgroup_charge(folio, mm, GFP_KERNEL | __GFP_NORETRY))
		return false;
	mem_cgroup_uncharge(folio);
	got = get_user_pages_remote(mm, addr, 1, FOLL_WRITE, &page, &locked);
	if (!locked)
		mmap_read_lock(mm);
	if (got != 1)
		return false;
	put_page(page);
	return true;
}

/* One page more for the list of those that will move, if it can be had. */
static void board(struct mm_struct *mm, unsigned long addr, struct page **frame,
		  struct passage *passage, struct list_head *pages,
		  unsigned int index, struct steer_result *result)
{
	struct folio *folio;
	int tries, installed, err = -EAGAIN;

	/* Each try splits a huge page, drains, or faults in: no need for more. */
	for (tries = 0; err && tries < 4; tries++) {
		err = isolate_one(mm, addr, page_to_nid(*frame), &folio);
		if (err == -ENOENT) {
			installed = install_zeroed(mm, addr, *frame);
			if (!installed) {
				*frame = NULL;
				result->moved++;
				result->zeroed++;
				return;
			}
			if (installed == -ENOMEM ||
			    !fault_in(mm, addr, *frame))
				return;
		} else if (err == -EBUSY && !tries) {
			/* New pages are not on the LRU lists at once. */
			lru_add_drain();
		} else if (err && err != -EAGAIN) {
			return;
		}
	}
	if (err)
		return;
	list_add_tail(&folio->lru, pages);
	passage->list[passage->nr++] = (struct passenger) {
		.folio = folio, .frame = *frame, .index = index,
	};
}

/**
 * steer_pages - put the pages behind user addresses onto chosen frames
 * @mm: whose addresses; a reference to its users is held
 * @nr: number of addresses and frames
 * @addrs: addresses of pages, in any order
 * @frames: the frame for each: a page of order 0 that the caller has allocated
 *	and that nobody else knows; NULL leaves the page at that address alone
 *
 * A huge page is split to move a part of it.  Pages that are pinned, merged,
 * not of anonymous or shared memory, or bound to other nodes stay where they
 * are.  An address with nothing but zeroes behind it gets its frame zeroed.  May
 * sleep, for I/O too.
 *
 * Entries of @frames are set to NULL, and the caller's reference is gone, where
 * the page is on its frame now.
 *
 * Return: how many are.
 */
struct steer_result steer_pages(struct mm_struct *mm, unsigned int nr,
				const unsigned long *addrs,
				struct page **frames)
{
	struct steer_result result = {};
	struct passage *passage;
	LIST_HEAD(pages);
	unsigned int i;

	passage = kvzalloc(struct_size(passage, list, nr), GFP_KERNEL);
	if (!passage)
		return result;

	lru_add_drain();
	mmap_read_lock(mm);
	for (i = 0; i < nr; i++) {
		if (frames[i])
			board(mm, addrs[i] & PAGE_MASK, &frames[i], passage,
			      &pages, i, &result);
		if (fatal_signal_pending(current))
			break;
	}
	mmap_read_unlock(mm);

	sort(passage->list, passage->nr, sizeof(*passage->list), by_folio, NULL);
	if (!list_empty(&pages)) {
		migrate_pages(&pages, chosen_frame, return_frame,
			      (unsigned long)passage, MIGRATE_SYNC,
			      MR_CONTIG_RANGE, NULL);
		putback_movable_pages(&pages);
	}
	for (i = 0; i < passage->nr; i++) {
		if (passage->list[i].boarded) {
			frames[passage->list[i].index] = NULL;
			result.moved++;
		}
	}
	kvfree(passage);
	return result;
}
EXPORT_SYMBOL_GPL(steer_pages);

/**
 * steer_node - the node whose frames suit the pages behind user addresses
 * @mm: whose addresses; a reference to its users is held
 * @nr: number of addresses
 * @addrs: addresses of pages, in any order; 0 for none
 *
 * A page on another node than the one it was put on costs more than a huge page
 * saves: the fewest shall leave theirs, and none that is bound to it.
 *
 * Return: the node that more than half of the pages are on, or one of theirs if
 * none has so many; NUMA_NO_NODE if there are no pages yet; -EINVAL if some of
 * the memory may not be there, or cannot be moved at all; -EBUSY if a page
 * cannot for now.
 */
int steer_node(struct mm_struct *mm, unsigned int nr,
	       const unsigned long *addrs)
{
	int node = NUMA_NO_NODE, result = -EINVAL;
	struct vm_area_struct *vma;
	unsigned int i, lead = 0;

	mmap_read_lock(mm);
	/* Each other page takes a vote away: what is left is the majority's. */
	for (i = 0; i < nr; i++) {
		struct folio_walk fw;
		struct folio *folio;
		bool moves;
		int nid;

		if (!addrs[i])
			continue;
		vma = steerable(mm, addrs[i]);
		if (!vma)
			goto unlock;
		folio = folio_walk_start(&fw, vma, addrs[i] & PAGE_MASK, 0);
		if (!folio)
			continue;
		nid = folio_nid(folio);
		moves = movable(folio);
		folio_walk_end(&fw, vma);
		if (!moves) {
			result = -EBUSY;
			goto unlock;
		}
		if (nid == node) {
			lead++;
		} else if (lead) {
			lead--;
		} else {
			node = nid;
			lead = 1;
		}
	}
	for (i = 0; i < nr && node != NUMA_NO_NODE; i++)
		if (addrs[i] &&
		    !may_be_on(steerable(mm, addrs[i]), addrs[i], node))
			goto unlock;
	result = node;
unlock:
	mmap_read_unlock(mm);
	return result;
}
EXPORT_SYMBOL_GPL(steer_node);

static bool is_huge(struct vm_area_struct *vma, unsigned long addr)
{
	struct folio_walk fw;
	bool huge;

	if (!folio_walk_start(&fw, vma, addr, 0))
		return false;
	huge = fw.level == FW_LEVEL_PMD;
	folio_walk_end(&fw, vma);
	return huge;
}

/**
 * steer_collapse - make a huge page of the memory around an address, now
 * @mm: whose address; a reference to its users is held
 * @addr: the address; the aligned 2 MiB around it are meant
 *
 * Only where khugepaged, in the end, may do the same.
 *
 * Return: 0, -EEXIST if it is one already, or what MADV_COLLAPSE would fail with.
 */
int steer_collapse(struct mm_struct *mm, unsigned long addr)
{
	unsigned long start = addr & HPAGE_PMD_MASK;
	unsigned long end = start + HPAGE_PMD_SIZE;
	struct vm_area_struct *vma, *prev;
	int err = -EINVAL;

	mmap_read_lock(mm);
	vma = steerable(mm, addr);
	if (vma && vma->vm_start <= start && vma->vm_end >= end &&
	    thp_vma_allowable_order(vma, vma->vm_flags, TVA_ENFORCE_SYSFS,
				    PMD_ORDER))
		err = is_huge(vma, start) ? -EEXIST :
		      madvise_collapse(vma, &prev, start, end);
	mmap_read_unlock(mm);
	return err;
}
EXPORT_SYMBOL_GPL(steer_collapse);
