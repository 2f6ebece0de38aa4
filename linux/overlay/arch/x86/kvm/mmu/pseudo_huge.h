/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pseudo huge pages: 2 MiB entries of nested guests' shadow page tables for
 * memory that the guest hypervisor maps with 4 KiB pages.
 *
 * Needs struct kvm_mmu_page: mmu_internal.h and spte.h come first.
 */
#ifndef __KVM_X86_MMU_PSEUDO_HUGE_H
#define __KVM_X86_MMU_PSEUDO_HUGE_H

#include "spte.h"

/*
 * Marks a 2 MiB SPTE as a pseudo huge page: unlike any other leaf it has no
 * rmap entry, the 4 KiB SPTEs of the shadow page behind it have.  Bit 55 is
 * ignored by EPT and available in NPT, and neither the A/D type (53:52), the
 * saved bits of access tracking (54, 56) nor EPT's host- and MMU-writable
 * (57, 58) use it.
 */
#define SPTE_PSEUDO_HUGE	BIT_ULL(55)

enum pseudo_huge_result {
	PSEUDO_HUGE_PROMOTED,	/* now, or before */
	PSEUDO_HUGE_SCATTERED,	/* all that lacks is that frames are in a row */
	PSEUDO_HUGE_UNFIT,	/* not whole, not uniform, not allowed */
};

#ifdef CONFIG_KVM_NESTED_ALIGN

void pseudo_huge_configure(int max_level);
bool pseudo_huge_possible(struct kvm *kvm, struct kvm_mmu_page *sp);
enum pseudo_huge_result pseudo_huge_promote(struct kvm *kvm,
					    struct kvm_mmu_page *sp);
void __pseudo_huge_demote(struct kvm_mmu_page *sp, enum pseudo_huge_cause cause);
void __pseudo_huge_demote_child(u64 *parent_sptep, enum pseudo_huge_cause cause);
bool pseudo_huge_spurious(u64 *sptep, struct kvm_page_fault *fault);
void __pseudo_huge_harvest_accessed(struct kvm_mmu_page *sp);
unsigned int pseudo_huge_take_accessed(struct kvm_mmu_page *sp);
void __pseudo_huge_return_accessed(struct kvm_mmu_page *sp, u64 *sptep);

static inline bool is_pseudo_huge_spte(u64 spte)
{
	return is_shadow_present_pte(spte) && (spte & SPTE_PSEUDO_HUGE);
}

/* The only link to @sp, if it has one; the promoted one must be told apart. */
static inline u64 *only_parent(struct kvm_mmu_page *sp)
{
	unsigned long val = sp->parent_ptes.val;

	/* Bit 0 says that there are several, see pte_list_add(). */
	return val & BIT(0) ? NULL : (u64 *)val;
}

/* Whether @sp shadows a leaf table that L1 made for a guest of its own. */
static inline bool is_nested_leaf_sp(struct kvm_mmu_page *sp)
{
	return sp->role.level == PG_LEVEL_4K && sp->role.guest_mode &&
	       !sp->role.direct && !sp->role.passthrough &&
	       !sp->role.has_4_byte_gpte && !sp->role.invalid;
}

/* Whether @sp has the 4 KiB parts of a page that L1 maps huge for its guest. */
static inline bool is_nested_split_sp(struct kvm_mmu_page *sp)
{
	return sp->role.level == PG_LEVEL_4K && sp->role.guest_mode &&
	       sp->role.direct && !sp->role.passthrough && !sp->role.invalid;
}

/* Relinks @sp if a 2 MiB SPTE stands for it: one of its SPTEs will change. */
static inline void pseudo_huge_demote(struct kvm_mmu_page *sp,
				      enum pseudo_huge_cause cause)
{
	if (unlikely(sp->pseudo_huge.sptep))
		__pseudo_huge_demote(sp, cause);
}

/* The same for the shadow page that holds @sptep. */
static inline void pseudo_huge_demote_spte(u64 *sptep,
					   enum pseudo_huge_cause cause)
{
	pseudo_huge_demote(sptep_to_sp(sptep), cause);
}

/* The same for the shadow page for which @parent_sptep may stand. */
static inline void pseudo_huge_demote_child(u64 *parent_sptep,
					    enum pseudo_huge_cause cause)
{
	if (unlikely(is_pseudo_huge_spte(*parent_sptep)))
		__pseudo_huge_demote_child(parent_sptep, cause);
}

/* L1 is about to write @sp's table unseen. */
static inline void pseudo_huge_unsync(struct kvm_mmu_page *sp)
{
	pseudo_huge_demote(sp, PSEUDO_HUGE_UNSYNC);
	sp->pseudo_huge.table_read = false;
}

/*
 * Whether L1 may have added much to @sp's table since that was read, while it
 * could unseen: it no longer can, or it was asked for as much as there was.
 */
static inline bool pseudo_huge_outgrown(struct kvm_mmu_page *sp)
{
	struct pseudo_huge *huge = &sp->pseudo_huge;

	return huge->read_unsync &&
	       (!sp->unsync || huge->nr_present >= 2 * huge->read_at + 8);
}

/*
 * Brings accesses home before an SPTE's are read: those through the 2 MiB SPTE,
 * and those that the worker took.
 */
static inline void pseudo_huge_harvest_accessed(u64 *sptep)
{
	struct kvm_mmu_page *sp = sptep_to_sp(sptep);

	if (unlikely(sp->pseudo_huge.sptep))
		__pseudo_huge_harvest_accessed(sp);
	if (unlikely(sp->pseudo_huge.accessed))
		__pseudo_huge_return_accessed(sp, sptep);
}

static inline void pseudo_huge_count(u64 *sptep, int change)
{
	struct pseudo_huge *huge = &sptep_to_sp(sptep)->pseudo_huge;

	huge->nr_present += change;
	if (change < 0)
		huge->table_read = false;
}

#else /* !CONFIG_KVM_NESTED_ALIGN */

static inline bool is_pseudo_huge_spte(u64 spte) { return false; }
static inline void pseudo_huge_configure(int max_level) {}
static inline void pseudo_huge_demote(struct kvm_mmu_page *sp,
				      enum pseudo_huge_cause cause) {}
static inline void pseudo_huge_unsync(struct kvm_mmu_page *sp) {}
static inline void pseudo_huge_demote_spte(u64 *sptep,
					   enum pseudo_huge_cause cause) {}
static inline void pseudo_huge_demote_child(u64 *parent_sptep,
					    enum pseudo_huge_cause cause) {}
static inline bool pseudo_huge_spurious(u64 *sptep,
					struct kvm_page_fault *fault)
{
	return false;
}
static inline void pseudo_huge_harvest_accessed(u64 *sptep) {}
static inline void pseudo_huge_count(u64 *sptep, int change) {}

#endif /* CONFIG_KVM_NESTED_ALIGN */
#endif /* __KVM_X86_MMU_PSEUDO_HUGE_H */
