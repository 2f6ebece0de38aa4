// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Pseudo huge pages.
 *
 * A guest hypervisor (L1) that backs its guest (L2) with 4 KiB pages makes KVM
 * (L0) shadow a leaf table: a shadow page of level 1 with up to 512 SPTEs.  If
 * the frames of all 512 happen to be, or were made to be, consecutive from a
 * 2 MiB boundary, the hardware may as well use one 2 MiB entry.
 *
 * The shadow page is retained: whole, hashed, with the reverse mappings of its
 * SPTEs and its link to its parent.  Only the value of the parent's entry
 * changes, from the table's address to a leaf.  So everything that finds SPTEs
 * through gfns keeps working; all it has to do is to relink the shadow page
 * before it changes one of them.
 *
 * Invariants while sp->pseudo_huge.sptep is set:
 *  - *sptep is a leaf with SPTE_PSEUDO_HUGE, and sptep is in sp->parent_ptes;
 *  - all 512 SPTEs of sp are present, with the frames and the permissions that
 *    *sptep gives; only accessed and dirty bits may differ;
 *  - sp is in step with L1's table: it is not unsync;
 *  - nothing changes an SPTE of sp but its accessed and dirty bits.
 *
 * mmu_lock is held for write whenever a page is promoted or demoted, with one
 * exception: marking a shadow page unsync may happen under mmu_lock held for
 * read, serialised by mmu_unsync_pages_lock.  Demotion therefore allocates
 * nothing, waits for nothing, and touches nothing but the two pages.
 *
 * TLBs.  Promotion and demotion change the size of a translation, not the
 * translation, so neither flushes: a stale entry of either size is right until
 * an SPTE changes, and whoever changes it flushes by the rules for 4 KiB SPTEs.
 * KVM flushes everything of the VM then, so entries of both sizes are gone.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/steer.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"
#include "pseudo_huge.h"
#include "nested_align_trace.h"

static bool nested_align_shield = true;
module_param(nested_align_shield, bool, 0644);
MODULE_PARM_DESC(nested_align_shield,
		 "Keep khugepaged and compaction off frames put in a row");

static bool huge_allowed __read_mostly;

/* The counters of demotions are in the order of their causes. */
static_assert(offsetof(struct kvm_vm_stat, nested_align_demoted_unlink) -
	      offsetof(struct kvm_vm_stat, nested_align_demoted_l1_write) ==
	      (NR_PSEUDO_HUGE_CAUSES - 1) * sizeof(u64));

#ifdef CONFIG_KVM_NESTED_ALIGN_DEBUG
/*
 * Demotions to leave out, a bit per enum pseudo_huge_cause.  The shadow page is
 * then taken for a relinked one while the 2 MiB SPTE still stands for it: the
 * guest's memory is corrupted sooner or later, and a test of the guest's memory
 * that does not notice is no test.
 */
static ulong nested_align_ignore;
module_param(nested_align_ignore, ulong, 0644);

static bool ignored(enum pseudo_huge_cause cause)
{
	return READ_ONCE(nested_align_ignore) & BIT(cause);
}

/* What must hold until the moment of demotion. */
static void check_invariants(struct kvm_mmu_page *sp)
{
	const u64 may_differ = shadow_accessed_mask | shadow_dirty_mask;
	u64 huge = READ_ONCE(*sp->pseudo_huge.sptep) &
		   ~(PT_PAGE_SIZE_MASK | SPTE_PSEUDO_HUGE);
	int i;

	WARN_ON_ONCE(sp->unsync);
	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		u64 part = huge + ((u64)i << PAGE_SHIFT);

		if (WARN_ON_ONCE((READ_ONCE(sp->spt[i]) ^ part) & ~may_differ))
			break;
	}
}
#else
static void check_invariants(struct kvm_mmu_page *sp) {}

static bool ignored(enum pseudo_huge_cause cause)
{
	return false;
}
#endif

/**
 * pseudo_huge_configure - learn what the hardware's second dimension can map
 * @max_level: the highest level with leaves, PG_LEVEL_*
 */
void pseudo_huge_configure(int max_level)
{
	/* A processor may not bear entries of both sizes in its TLB. */
	huge_allowed = max_level >= PG_LEVEL_2M &&
		       !boot_cpu_has_bug(X86_BUG_AMD_TLB_MMATCH);
}

/*
 * Where an entry of level 2 keeps the shadow page that a pseudo huge SPTE in it
 * stands for.  A page that shadows a table of L1 has a word per entry for the
 * translation of a leaf; that of a pseudo huge page is in its child, so the
 * word is free.
 */
static u64 *child_word(u64 *parent)
{
	return &sptep_to_sp(parent)->shadowed_translation[spte_index(parent)];
}

/* Whether a dirty log wants to hear of writes to @gfn page by page. */
static bool dirty_logged(struct kvm *kvm, struct kvm_mmu_page *sp, gfn_t gfn,
			 struct kvm_memory_slot **slot)
{
	if (!*slot || gfn < (*slot)->base_gfn ||
	    gfn >= (*slot)->base_gfn + (*slot)->npages)
		*slot = __gfn_to_memslot(kvm_memslots_for_spte_role(kvm, sp->role),
					 gfn);
	return !*slot || kvm_slot_dirty_track_enabled(*slot);
}

/* Whether an SPTE like this one may be a part of a 2 MiB SPTE. */
static bool may_be_part(struct kvm *kvm, u64 spte)
{
	/*
	 * Without accessed bits, access is tracked by taking it away; one page
	 * of 512 cannot be told then.
	 */
	if (!huge_allowed || !spte_ad_enabled(spte) || !shadow_accessed_mask)
		return false;
	/*
	 * The erratum behind nx_huge_pages is about executable pages that
	 * change their size unflushed; who switches that off trusts guests not
	 * to do so, and we would.
	 */
	return !is_executable_pte(spte) ||
	       !(is_nx_huge_page_enabled(kvm) ||
		 boot_cpu_has_bug(X86_BUG_ITLB_MULTIHIT));
}

/**
 * pseudo_huge_possible - whether a region is worth making whole
 * @kvm: the VM, mmu_lock held
 * @sp: the shadow page of level 1
 *
 * Return: false if no 2 MiB SPTE may stand for it whatever else is done, by the
 * first of its SPTEs that is present.
 */
bool pseudo_huge_possible(struct kvm *kvm, struct kvm_mmu_page *sp)
{
	struct kvm_memory_slot *slot = NULL;
	int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++)
		if (is_shadow_present_pte(sp->spt[i]))
			return may_be_part(kvm, sp->spt[i]) &&
			       !dirty_logged(kvm, sp,
					     sp->shadowed_translation[i] >>
					     PAGE_SHIFT, &slot);
	return false;
}

/**
 * pseudo_huge_promote - let one 2 MiB SPTE stand for a shadow page of level 1
 * @kvm: the VM, mmu_lock held for write
 * @sp: the shadow page, see is_nested_leaf_sp()
 *
 * Return: PSEUDO_HUGE_PROMOTED if it does, PSEUDO_HUGE_SCATTERED if it would
 * with other frames, PSEUDO_HUGE_UNFIT otherwise.
 */
enum pseudo_huge_result pseudo_huge_promote(struct kvm *kvm,
					    struct kvm_mmu_page *sp)
{
	const u64 volatile_bits = shadow_accessed_mask | shadow_dirty_mask;
	struct kvm_memory_slot *slot = NULL;
	u64 *parent = only_parent(sp);
	u64 first = sp->spt[0], all = ~0ull, huge;
	kvm_pfn_t pfn = spte_to_pfn(first);
	bool scattered = pfn & (SPTE_ENT_PER_PAGE - 1);
	int i;

	lockdep_assert_held_write(&kvm->mmu_lock);

	if (sp->pseudo_huge.sptep)
		return PSEUDO_HUGE_PROMOTED;
	if (!parent || sp->unsync ||
	    sp->pseudo_huge.nr_present != SPTE_ENT_PER_PAGE ||
	    !may_be_part(kvm, first))
		return PSEUDO_HUGE_UNFIT;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		u64 spte = sp->spt[i];
		u64 mask = volatile_bits | SPTE_BASE_ADDR_MASK;

		/* Also refuses entries that something write-protects. */
		if ((spte ^ first) & ~mask)
			return PSEUDO_HUGE_UNFIT;
		if (dirty_logged(kvm, sp,
				 sp->shadowed_translation[i] >> PAGE_SHIFT, &slot))
			return PSEUDO_HUGE_UNFIT;
		scattered |= spte_to_pfn(spte) != pfn + i;
		all &= spte;
	}
	if (scattered)
		return PSEUDO_HUGE_SCATTERED;

	/*
	 * Clean and unused: hardware marks the huge SPTE, and demotion passes
	 * the marks on to all 512.  Dirty only if nothing could be lost by it.
	 */
	huge = (first & ~volatile_bits) | (all & shadow_dirty_mask) |
	       PT_PAGE_SIZE_MASK | SPTE_PSEUDO_HUGE;

	*child_word(parent) = (unsigned long)sp;
	sp->pseudo_huge.kvm = kvm;
	WRITE_ONCE(sp->pseudo_huge.sptep, parent);
	/* Hardware may be setting the table's accessed bit: one exchange. */
	xchg(parent, huge);
	if (READ_ONCE(nested_align_shield))
		steer_shield(pfn);

	++kvm->stat.nested_align_promoted;
	++kvm->stat.nested_align_pseudo_huge;
	trace_nested_align_promote(sp, huge);
	return PSEUDO_HUGE_PROMOTED;
}

/* Whether TLB flushes of this host may be confined to a range of gfns. */
static bool flushes_ranges(void)
{
#if IS_ENABLED(CONFIG_HYPERV)
	return kvm_x86_ops.flush_remote_tlbs_range;
#else
	return false;
#endif
}

/* Sets @bits, which hardware may be setting too, in all SPTEs of @sp. */
static void mark_all(struct kvm_mmu_page *sp, u64 bits)
{
	int i;

	for (i = 0; bits && i < SPTE_ENT_PER_PAGE; i++)
		if (bits & ~READ_ONCE(sp->spt[i]))
			atomic64_or(bits, (atomic64_t *)&sp->spt[i]);
}

/* Lets the entry @parent lead to @sp's table again. */
static void relink(u64 *parent, struct kvm_mmu_page *sp)
{
	/*
	 * Whole at every moment: hardware that walks now sees either size of
	 * the same translation.  Marks that it makes after this exchange, it
	 * makes in the small SPTEs.
	 */
	u64 old = xchg(parent, make_nonleaf_spte(sp->spt, false));

	WARN_ON_ONCE(!is_pseudo_huge_spte(old));
	steer_unshield(spte_to_pfn(old));
	mark_all(sp, old & (shadow_accessed_mask | shadow_dirty_mask));
	*child_word(parent) = 0;
}

/**
 * __pseudo_huge_demote - relink a shadow page for which a 2 MiB SPTE stands
 * @sp: the shadow page, sp->pseudo_huge.sptep set; mmu_lock held for write, or
 *	for read with mmu_unsync_pages_lock
 * @cause: why
 *
 * Accesses and writes through the 2 MiB SPTE become those of all 512 SPTEs.
 */
void __pseudo_huge_demote(struct kvm_mmu_page *sp, enum pseudo_huge_cause cause)
{
	struct kvm *kvm = sp->pseudo_huge.kvm;
	u64 *parent = sp->pseudo_huge.sptep;

	lockdep_assert_held(&kvm->mmu_lock);
	check_invariants(sp);

	if (!ignored(cause))
		relink(parent, sp);
	WRITE_ONCE(sp->pseudo_huge.sptep, NULL);

	/*
	 * A flush of ranges, which only Hyper-V offers, goes by the pages that
	 * change; an entry of 2 MiB could be left behind by it.
	 */
	if (flushes_ranges())
		kvm_flush_remote_tlbs(kvm);

	--kvm->stat.nested_align_pseudo_huge;
	++*(&kvm->stat.nested_align_demoted_l1_write + cause);
	trace_nested_align_demote(sp, cause);
}

/**
 * __pseudo_huge_demote_child - relink the shadow page behind a 2 MiB SPTE
 * @parent_sptep: the SPTE, marked SPTE_PSEUDO_HUGE; mmu_lock held for write
 * @cause: why
 */
void __pseudo_huge_demote_child(u64 *parent_sptep, enum pseudo_huge_cause cause)
{
	u64 word = *child_word(parent_sptep);
	struct kvm_mmu_page *sp = (struct kvm_mmu_page *)word;

	/* Can only be if a demotion was left out, see nested_align_ignore. */
	if (WARN_ON_ONCE(!sp->pseudo_huge.sptep))
		relink(parent_sptep, sp);
	else
		__pseudo_huge_demote(sp, cause);
}

/**
 * __pseudo_huge_harvest_accessed - pass accesses on to the small SPTEs
 * @sp: the shadow page, sp->pseudo_huge.sptep set; mmu_lock held for write
 *
 * For those who read or clear accessed bits.  The page stays promoted: the
 * accessed bit is the one that hardware may set again at any time, so nobody
 * relies on it for more than a guess.
 */
void __pseudo_huge_harvest_accessed(struct kvm_mmu_page *sp)
{
	u64 *parent = sp->pseudo_huge.sptep;

	if (!(READ_ONCE(*parent) & shadow_accessed_mask))
		return;
	clear_bit(__ffs(shadow_accessed_mask), (unsigned long *)parent);
	mark_all(sp, shadow_accessed_mask);
}

/* Every which SPTE the worker looks at. */
#define SAMPLED		16

static_assert(SPTE_ENT_PER_PAGE / SAMPLED ==
	      BITS_PER_BYTE * sizeof_field(struct pseudo_huge, accessed));

/**
 * pseudo_huge_take_accessed - how much of a region was used since the last call
 * @sp: the shadow page, not promoted; mmu_lock held for write
 *
 * No TLB is flushed, so accesses that need no walk go unseen: as with all that
 * ages pages, a guess.  The bits are the host's, who ages its memory by them;
 * they are kept for it.
 *
 * Return: how many of a sample of 32 SPTEs were.
 */
unsigned int pseudo_huge_take_accessed(struct kvm_mmu_page *sp)
{
	unsigned int i, nr = 0;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i += SAMPLED) {
		u64 spte = sp->spt[i];

		if (!is_shadow_present_pte(spte) || !is_accessed_spte(spte))
			continue;
		nr++;
		if (!spte_ad_enabled(spte) || !shadow_accessed_mask)
			continue;
		clear_bit(__ffs(shadow_accessed_mask),
			  (unsigned long *)&sp->spt[i]);
		sp->pseudo_huge.accessed |= BIT(i / SAMPLED);
	}
	return nr;
}

/**
 * __pseudo_huge_return_accessed - undo pseudo_huge_take_accessed()
 * @sp: the shadow page; mmu_lock held for write
 * @sptep: for this SPTE of it
 */
void __pseudo_huge_return_accessed(struct kvm_mmu_page *sp, u64 *sptep)
{
	unsigned int i = spte_index(sptep);

	if (i % SAMPLED || !(sp->pseudo_huge.accessed & BIT(i / SAMPLED)))
		return;
	sp->pseudo_huge.accessed &= ~BIT(i / SAMPLED);
	if (is_shadow_present_pte(*sptep) && spte_ad_enabled(*sptep))
		atomic64_or(shadow_accessed_mask, (atomic64_t *)sptep);
}

/**
 * pseudo_huge_spurious - whether a fault is already answered by a 2 MiB SPTE
 * @sptep: an entry of level 2 on the fault's way
 * @fault: the fault
 *
 * Two vCPUs can fault on one region at once, and the first to be served make
 * the region whole.  A pseudo huge page that does not answer the fault is given
 * up: the fault is about to change what is behind it.
 *
 * Return: true if the access would now succeed.
 */
bool pseudo_huge_spurious(u64 *sptep, struct kvm_page_fault *fault)
{
	u64 spte = *sptep;
	bool allowed;

	if (likely(!is_pseudo_huge_spte(spte)))
		return false;

	allowed = fault->exec ? is_executable_pte(spte) :
		  fault->write ? is_writable_pte(spte) : true;
	if (allowed && fault->pfn == spte_to_pfn(spte) +
				     SPTE_INDEX(fault->addr, PG_LEVEL_4K))
		return true;

	__pseudo_huge_demote_child(sptep, PSEUDO_HUGE_FAULT);
	return false;
}
