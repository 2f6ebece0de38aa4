/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Alignment of nested guests' huge pages: what struct kvm_mmu_page, struct
 * kvm_arch, struct kvm_vcpu_arch and struct kvm_vm_stat hold for it.
 */
#ifndef _ASM_X86_KVM_NESTED_ALIGN_H
#define _ASM_X86_KVM_NESTED_ALIGN_H

#include <linux/kvm_types.h>
#include <linux/types.h>

struct kvm;
struct nested_align;

/**
 * enum pseudo_huge_cause - why a pseudo huge page is given up
 * @PSEUDO_HUGE_L1_WRITE: L1 wrote an entry of the shadowed table
 * @PSEUDO_HUGE_UNSYNC: L1 is about to write the shadowed table unseen
 * @PSEUDO_HUGE_HOST: a page is unmapped, moved or shared by the host
 * @PSEUDO_HUGE_DROP: an entry is dropped for another reason
 * @PSEUDO_HUGE_PROTECT: an entry is write-protected
 * @PSEUDO_HUGE_DIRTY_LOG: an entry's dirty state is collected
 * @PSEUDO_HUGE_UPDATE: an entry's permissions change
 * @PSEUDO_HUGE_FAULT: an access needs more than the 2 MiB entry allows
 * @PSEUDO_HUGE_UNLINK: the table is unlinked from the page that maps it
 * @NR_PSEUDO_HUGE_CAUSES: their number
 */
enum pseudo_huge_cause {
	PSEUDO_HUGE_L1_WRITE,
	PSEUDO_HUGE_UNSYNC,
	PSEUDO_HUGE_HOST,
	PSEUDO_HUGE_DROP,
	PSEUDO_HUGE_PROTECT,
	PSEUDO_HUGE_DIRTY_LOG,
	PSEUDO_HUGE_UPDATE,
	PSEUDO_HUGE_FAULT,
	PSEUDO_HUGE_UNLINK,
	NR_PSEUDO_HUGE_CAUSES
};

/**
 * enum nested_align_setting - what may be another value for one VM than for all
 * @NESTED_ALIGN_PERIOD_MS: pause between two scans, in milliseconds
 * @NESTED_ALIGN_CPU_PERCENT: share of one CPU
 * @NESTED_ALIGN_PAGES_PER_SECOND: pages that may be moved
 * @NESTED_ALIGN_MIN_PRESENT: pages of 512 that L1 must map
 * @NESTED_ALIGN_MAX_FRAGMENTATION: FMFI beyond which these are 512, per cent
 * @NESTED_ALIGN_BOOKED_MAX: 2 MiB blocks that may be booked
 * @NESTED_ALIGN_TERM_MS: how long they are at first, in milliseconds
 * @NR_NESTED_ALIGN_SETTINGS: their number
 */
enum nested_align_setting {
	NESTED_ALIGN_PERIOD_MS,
	NESTED_ALIGN_CPU_PERCENT,
	NESTED_ALIGN_PAGES_PER_SECOND,
	NESTED_ALIGN_MIN_PRESENT,
	NESTED_ALIGN_MAX_FRAGMENTATION,
	NESTED_ALIGN_BOOKED_MAX,
	NESTED_ALIGN_TERM_MS,
	NR_NESTED_ALIGN_SETTINGS
};

#ifdef CONFIG_KVM_NESTED_ALIGN

/**
 * struct pseudo_huge - what a shadow page of level 1 knows of its promotion
 * @sptep: the 2 MiB SPTE that stands for the whole page, NULL if none does
 * @kvm: the VM; valid if @sptep is
 * @nr_present: shadow-present SPTEs
 * @settled: what @nr_present was at the worker's last visit
 * @accessed: accessed bits that the worker took from SPTEs, one of 16, and that
 *	the host has not seen yet
 * @table_read: L1's table was read as a whole, or the host was asked for a huge
 *	page where L1 has one, and no SPTE was lost since
 * @read_unsync: it was read while L1 could write it unseen
 * @read_at: what @nr_present was after it was read
 *
 * Protected by mmu_lock held for write, or for read together with
 * mmu_unsync_pages_lock.
 */
struct pseudo_huge {
	u64 *sptep;
	struct kvm *kvm;
	u16 nr_present;
	u16 settled;
	u16 read_at;
	u32 accessed;
	bool table_read;
	bool read_unsync;
};

/**
 * struct kvm_nested_align - what a VM knows of the alignment of its guests
 * @state: buffers, bookings and worker; NULL until a nested guest needs them
 * @retry_at: when to try again to get @state
 * @own: settings, each one more than its value; 0 where all VMs' value holds
 * @off: switched off for this VM
 */
struct kvm_nested_align {
	struct nested_align *state;
	unsigned long retry_at;
	u64 own[NR_NESTED_ALIGN_SETTINGS];
	bool off;
};

/**
 * struct kvm_vcpu_nested_align - what a vCPU knows of its guest's last fault
 * @missing: address in the nested guest's memory that L1 is to map, valid if
 * @is_missing: there is one
 * @table: address of the leaf table in which L1 is to, INVALID_GPA if it has none
 */
struct kvm_vcpu_nested_align {
	gpa_t missing;
	gpa_t table;
	bool is_missing;
};

/* Counters of a VM, in KVM's binary statistics: _(KIND, name). */
#define KVM_NESTED_ALIGN_STATS(_)			\
	_(ICOUNTER, nested_align_pseudo_huge)		\
	_(COUNTER, nested_align_promoted)		\
	_(COUNTER, nested_align_demoted_l1_write)	\
	_(COUNTER, nested_align_demoted_unsync)		\
	_(COUNTER, nested_align_demoted_host)		\
	_(COUNTER, nested_align_demoted_drop)		\
	_(COUNTER, nested_align_demoted_protect)	\
	_(COUNTER, nested_align_demoted_dirty_log)	\
	_(COUNTER, nested_align_demoted_update)		\
	_(COUNTER, nested_align_demoted_fault)		\
	_(COUNTER, nested_align_demoted_unlink)		\
	_(COUNTER, nested_align_filled)			\
	_(COUNTER, nested_align_kept_unsync)		\
	_(COUNTER, nested_align_synchronised)		\
	_(COUNTER, nested_align_populated)		\
	_(COUNTER, nested_align_around)			\
	_(COUNTER, nested_align_steered)		\
	_(COUNTER, nested_align_placed)			\
	_(COUNTER, nested_align_copied)			\
	_(COUNTER, nested_align_zero_skipped)		\
	_(COUNTER, nested_align_steer_failed)		\
	_(COUNTER, nested_align_taken)			\
	_(COUNTER, nested_align_collapsed)		\
	_(ICOUNTER, nested_align_booked)		\
	_(COUNTER, nested_align_bookings)		\
	_(COUNTER, nested_align_timeouts)		\
	_(COUNTER, nested_align_reclaimed)		\
	_(COUNTER, nested_align_throttled)		\
	_(COUNTER, nested_align_scans)			\
	_(COUNTER, nested_align_scan_ns)		\
	_(COUNTER, nested_align_steer_ns)

#define KVM_NESTED_ALIGN_STAT_FIELD(kind, name)	u64 name;
#define KVM_NESTED_ALIGN_STAT_FIELDS	\
	KVM_NESTED_ALIGN_STATS(KVM_NESTED_ALIGN_STAT_FIELD)
#define KVM_NESTED_ALIGN_STAT_DESC(kind, name)	, STATS_DESC_##kind(VM, name)
#define KVM_NESTED_ALIGN_STAT_DESCS	\
	KVM_NESTED_ALIGN_STATS(KVM_NESTED_ALIGN_STAT_DESC)

#else /* !CONFIG_KVM_NESTED_ALIGN */

struct pseudo_huge {};
struct kvm_nested_align {};
struct kvm_vcpu_nested_align {};

#define KVM_NESTED_ALIGN_STAT_FIELDS
#define KVM_NESTED_ALIGN_STAT_DESCS

#endif /* CONFIG_KVM_NESTED_ALIGN */
#endif /* _ASM_X86_KVM_NESTED_ALIGN_H */
