/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a fault of a nested guest does for its region: read L1's leaf table as
 * a whole rather than entry by entry, and promote.
 *
 * Included by paging_tmpl.h, once for each format of L1's tables.
 */
#if defined(CONFIG_KVM_NESTED_ALIGN) && PTTYPE != 32

/*
 * Fills the absent SPTEs of @sp from L1's table, as pte_prefetch() does for the
 * eight around a fault.  One exit then serves up to 512 pages.
 */
static void FNAME(populate)(struct kvm_vcpu *vcpu, struct kvm_mmu_page *sp)
{
	struct kvm_mmu_memory_cache *descs = &vcpu->arch.mmu_pte_list_desc_cache;
	pt_element_t *gptes = nested_align_table(vcpu->kvm);
	int i, before = sp->pseudo_huge.nr_present;

	if (!gptes || vcpu->kvm->mmu_invalidate_in_progress ||
	    kvm_vcpu_read_guest_atomic(vcpu, gfn_to_gpa(sp->gfn), gptes,
				       PAGE_SIZE))
		return;

	sp->pseudo_huge.table_read = true;
	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		if (is_shadow_present_pte(sp->spt[i]))
			continue;
		/*
		 * An entry may need a descriptor for its reverse mapping; the
		 * rest of the table is left to the next fault then.
		 */
		if (kvm_mmu_memory_cache_nr_free_objects(descs) < 2) {
			sp->pseudo_huge.table_read = false;
			break;
		}
		FNAME(prefetch_gpte)(vcpu, sp, &sp->spt[i], gptes[i]);
	}
	sp->pseudo_huge.read_unsync = sp->unsync;
	sp->pseudo_huge.read_at = sp->pseudo_huge.nr_present;
	vcpu->kvm->stat.nested_align_populated +=
		sp->pseudo_huge.nr_present - before;
	trace_nested_align_populate(sp, sp->pseudo_huge.nr_present - before);
}

/* A fault finds nothing in L1's tables, and L1 is told. */
static void FNAME(nested_align_reflect)(struct kvm_vcpu *vcpu,
					struct kvm_page_fault *fault,
					struct guest_walker *gw)
{
	/* A device of L1's, as KVM in L1 marks it: nothing will be mapped. */
	if (gw->fault.error_code & PFERR_RSVD_MASK)
		return;
	nested_align_reflect(vcpu, fault->addr, gw->level == PG_LEVEL_4K ?
			     gfn_to_gpa(gw->table_gfn[0]) : INVALID_GPA);
}

/* L1 has mapped the page of a fault, and it is about to be looked up. */
static void FNAME(nested_align_place)(struct kvm_vcpu *vcpu,
				      struct kvm_page_fault *fault,
				      struct guest_walker *gw)
{
	if (gw->level == PG_LEVEL_4K)
		nested_align_place(vcpu, gw->table_gfn[0],
				   SPTE_INDEX(fault->addr, PG_LEVEL_4K),
				   fault->gfn);
}

/*
 * Reads a table for the last time that L1 has filled unseen: a 2 MiB SPTE may
 * only stand for a page that is in step, and KVM itself waits for L1's next
 * INVEPT, which one that only adds pages never needs.
 *
 * L1's vCPUs may have writable translations of the table in their TLBs.  These
 * must be gone before the table is read: what one wrote through them afterwards
 * would stay unseen, and L2 use a page that L1 has taken away.  The parents keep
 * their marks of an unsync child, which the next walk takes away, so that other
 * vCPUs never miss a page that is being read; see is_unsync_root().
 *
 * Returns whether @sp is in step; it may be gone if it is not.
 */
static bool FNAME(synchronise_whole)(struct kvm_vcpu *vcpu,
				     struct kvm_mmu_page *sp)
{
	struct kvm *kvm = vcpu->kvm;
	LIST_HEAD(invalid_list);
	int flush;

	if (!sp->unsync)
		return true;
	if (sp->pseudo_huge.nr_present != SPTE_ENT_PER_PAGE ||
	    !only_parent(sp) || !pseudo_huge_possible(kvm, sp))
		return false;

	if (kvm_vcpu_write_protect_gfn(vcpu, sp->gfn))
		kvm_flush_remote_tlbs(kvm);
	kvm_unlink_unsync_page(kvm, sp);
	flush = kvm_sync_page(vcpu, sp, &invalid_list);
	kvm_mmu_remote_flush_or_zap(kvm, &invalid_list, flush > 0);
	++kvm->stat.nested_align_synchronised;
	return flush >= 0;
}

/*
 * A fault was served at @sptep.  Returns whether its region lacks nothing for a
 * 2 MiB entry but frames in a row.
 */
static bool FNAME(nested_align)(struct kvm_vcpu *vcpu,
				struct kvm_page_fault *fault,
				struct guest_walker *gw, u64 *sptep)
{
	struct kvm_mmu_page *sp = sptep_to_sp(sptep);
	struct kvm *kvm = vcpu->kvm;

	if (!nested_align_enabled(kvm) || !fault->slot ||
	    gw->level != PG_LEVEL_4K || !is_nested_leaf_sp(sp))
		return false;
	if (!sp->pseudo_huge.table_read || pseudo_huge_outgrown(sp))
		FNAME(populate)(vcpu, sp);
	if (!FNAME(synchronise_whole)(vcpu, sp))
		return false;
	return pseudo_huge_promote(kvm, sp) == PSEUDO_HUGE_SCATTERED;
}

#else

static void FNAME(nested_align_reflect)(struct kvm_vcpu *vcpu,
					struct kvm_page_fault *fault,
					struct guest_walker *gw)
{
}

static void FNAME(nested_align_place)(struct kvm_vcpu *vcpu,
				      struct kvm_page_fault *fault,
				      struct guest_walker *gw)
{
}

static bool FNAME(nested_align)(struct kvm_vcpu *vcpu,
				struct kvm_page_fault *fault,
				struct guest_walker *gw, u64 *sptep)
{
	return false;
}

#endif
