/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a fault of L1 itself does when the host's huge page behind it was split
 * to steer a part of it.
 *
 * Included by tdp_mmu.c.
 */
#ifdef CONFIG_KVM_NESTED_ALIGN

/* Pages that a fault maps at once, as many as the host's own fault-around. */
#define AROUND	16

/*
 * Maps the pages around @iter's that the host has mapped and may be written, as
 * direct_pte_prefetch() does without the TDP MMU.  Splitting a huge page costs
 * L1 a fault for a few pages then, and not for each.
 *
 * No MMU notifier is under way, and one that begins has to wait for mmu_lock:
 * what the process maps now stays until it zaps these SPTEs too.
 */
static void nested_align_map_around(struct kvm_vcpu *vcpu,
				    struct kvm_page_fault *fault,
				    const struct tdp_iter *iter)
{
	struct kvm_mmu_page *sp = sptep_to_sp(rcu_dereference(iter->sptep));
	const struct kvm_memory_slot *slot = fault->slot;
	struct kvm *kvm = vcpu->kvm;
	struct tdp_iter around = *iter;
	unsigned int nr = 0;
	gfn_t gfn, end;

	if (iter->level != PG_LEVEL_4K || !nested_align_in_use(kvm) ||
	    !slot || slot->flags & KVM_MEM_READONLY ||
	    kvm_slot_can_be_private(slot) || kvm_slot_dirty_track_enabled(slot) ||
	    sp_ad_disabled(sp) || kvm->mmu_invalidate_in_progress)
		return;

	gfn = max(ALIGN_DOWN(iter->gfn, AROUND), slot->base_gfn);
	end = min(ALIGN_DOWN(iter->gfn, AROUND) + AROUND,
		  slot->base_gfn + slot->npages);
	for (; gfn < end; gfn++) {
		struct page *page;
		u64 new_spte;

		around.gfn = gfn;
		around.sptep = iter->sptep + ((long)gfn - (long)iter->gfn);
		around.old_spte = kvm_tdp_mmu_read_spte(around.sptep);
		if (is_shadow_present_pte(around.old_spte) ||
		    is_mmio_spte(kvm, around.old_spte) ||
		    is_frozen_spte(around.old_spte) ||
		    !get_user_page_fast_only(__gfn_to_hva_memslot(slot, gfn),
					     FOLL_WRITE, &page))
			continue;
		make_spte(vcpu, sp, slot, ACC_ALL, gfn, page_to_pfn(page),
			  around.old_spte, true, true, true, &new_spte);
		/* Or another vCPU was first: as good. */
		nr += !tdp_mmu_set_spte_atomic(kvm, &around, new_spte);
		put_page(page);
	}
	/* mmu_lock is held for read only. */
	atomic64_add(nr, (atomic64_t *)&kvm->stat.nested_align_around);
}

#else

static void nested_align_map_around(struct kvm_vcpu *vcpu,
				    struct kvm_page_fault *fault,
				    const struct tdp_iter *iter)
{
}

#endif
