/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Making nested guests' memory fit for 2 MiB entries: which regions, when, and
 * at what cost.
 */
#ifndef __KVM_X86_MMU_NESTED_ALIGN_H
#define __KVM_X86_MMU_NESTED_ALIGN_H

#include <linux/jiffies.h>
#include <linux/kvm_host.h>

#include "kvm_cache_regs.h"

struct kvm_mmu_page;

#ifdef CONFIG_KVM_NESTED_ALIGN

bool nested_align_enabled(struct kvm *kvm);
unsigned int nested_align_setting(struct kvm *kvm,
				  enum nested_align_setting which);
void __nested_align_prepare(struct kvm *kvm);
u64 *nested_align_table(struct kvm *kvm);
void nested_align_fault(struct kvm_vcpu *vcpu, gfn_t table_gfn);
void __nested_align_place(struct kvm_vcpu *vcpu, gfn_t table_gfn,
			  unsigned int index, gfn_t gfn);
void __nested_align_enter(struct kvm_vcpu *vcpu);
bool __nested_align_keep_unsync(struct kvm_vcpu *vcpu, struct kvm_mmu_page *sp);
void nested_align_create_debugfs(struct kvm *kvm);
void nested_align_create_regions(struct kvm *kvm);
void nested_align_destroy(struct kvm *kvm);
int nested_align_init(void);
void nested_align_exit(void);

/* Gets the VM ready for faults of its guests; only they need it. */
static inline void nested_align_prepare(struct kvm_vcpu *vcpu)
{
	struct kvm *kvm = vcpu->kvm;

	if (is_guest_mode(vcpu) && nested_align_enabled(kvm) &&
	    unlikely(!READ_ONCE(kvm->arch.nested_align.state)) &&
	    time_after_eq(jiffies, READ_ONCE(kvm->arch.nested_align.retry_at)))
		__nested_align_prepare(kvm);
}

/* Whether a guest of this VM has run, and something is done for it. */
static inline bool nested_align_in_use(struct kvm *kvm)
{
	return READ_ONCE(kvm->arch.nested_align.state) &&
	       nested_align_enabled(kvm);
}

/* A page of L1's guest is about to be mapped; nothing is booked as a rule. */
static inline void nested_align_place(struct kvm_vcpu *vcpu, gfn_t table_gfn,
				      unsigned int index, gfn_t gfn)
{
	if (vcpu->arch.mmu == &vcpu->arch.guest_mmu &&
	    unlikely(READ_ONCE(vcpu->kvm->stat.nested_align_booked)) &&
	    nested_align_in_use(vcpu->kvm))
		__nested_align_place(vcpu, table_gfn, index, gfn);
}

/* L1 is told of a fault of its guest, and will map what is missing. */
static inline void nested_align_reflect(struct kvm_vcpu *vcpu, gpa_t missing,
					gpa_t table)
{
	if (vcpu->arch.mmu == &vcpu->arch.guest_mmu &&
	    nested_align_in_use(vcpu->kvm))
		vcpu->arch.nested_align = (struct kvm_vcpu_nested_align) {
			.missing = missing,
			.table = table,
			.is_missing = true,
		};
}

/* Whether L1 may go on writing @sp's table unseen, after it was read. */
static inline bool nested_align_keep_unsync(struct kvm_vcpu *vcpu,
					    struct kvm_mmu_page *sp)
{
	return unlikely(vcpu->arch.nested_align.is_missing) &&
	       __nested_align_keep_unsync(vcpu, sp);
}

static inline void nested_align_count_kept(struct kvm *kvm)
{
	++kvm->stat.nested_align_kept_unsync;
}

/* The vCPU is about to enter L1 or its guest, its MMU loaded and in step. */
static inline void nested_align_enter(struct kvm_vcpu *vcpu)
{
	if (unlikely(vcpu->arch.nested_align.is_missing))
		__nested_align_enter(vcpu);
}

#else

static inline void nested_align_prepare(struct kvm_vcpu *vcpu) {}
static inline void nested_align_fault(struct kvm_vcpu *vcpu, gfn_t table_gfn) {}
static inline void nested_align_reflect(struct kvm_vcpu *vcpu, gpa_t missing,
					gpa_t table) {}
static inline bool nested_align_keep_unsync(struct kvm_vcpu *vcpu,
					    struct kvm_mmu_page *sp)
{
	return false;
}

static inline void nested_align_count_kept(struct kvm *kvm) {}
static inline void nested_align_enter(struct kvm_vcpu *vcpu) {}
static inline int nested_align_init(void) { return 0; }
static inline void nested_align_exit(void) {}

static inline void nested_align_create_debugfs(struct kvm *kvm) {}
static inline void nested_align_destroy(struct kvm *kvm) {}

#endif /* CONFIG_KVM_NESTED_ALIGN */
#endif /* __KVM_X86_MMU_NESTED_ALIGN_H */
