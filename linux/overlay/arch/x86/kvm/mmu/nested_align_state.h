/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a VM keeps for the alignment of its guests, and who works on it.
 */
#ifndef __KVM_X86_MMU_NESTED_ALIGN_STATE_H
#define __KVM_X86_MMU_NESTED_ALIGN_STATE_H

#include <linux/kvm_host.h>
#include <linux/mutex.h>

#include "mmu_internal.h"
#include "spte.h"
#include "huge_booking.h"

#define MAX_CANDIDATES	256
#define MAX_SMALL_HOSTS	64

/* A shadow page that lacks nothing, or little, but frames in a row. */
struct candidate {
	gfn_t table_gfn;
	u16 present;
	u16 accessed;
};

/**
 * struct nested_align - a VM's state, from its first nested fault on
 * @kvm: the VM
 * @list: among all VMs' states, for the shrinker
 * @lock: protects what follows up to @table
 * @booking: frames for regions
 * @gptes: a leaf table of L1
 * @addrs: where its pages are in the process
 * @frames: and where they shall be in memory
 * @candidates: what the worker has found
 * @small_hosts: addresses that L1 maps huge and the host does not, to be tried
 * @nr_small_hosts: their number
 * @budget_ns: time that may be spent; negative: overdrawn
 * @budget_pages: pages that may be moved
 * @budget_at: when both were last filled up
 * @ticked_at: when bookings were last looked through (jiffies)
 * @table: a leaf table of L1; protected by mmu_lock
 * @cursor: bucket of mmu_page_hash to go on with; the worker's
 * @worker: the VM's thread for all this
 */
struct nested_align {
	struct kvm *kvm;
	struct list_head list;

	struct mutex lock;
	struct huge_booking booking;
	u64 gptes[SPTE_ENT_PER_PAGE];
	unsigned long addrs[SPTE_ENT_PER_PAGE];
	struct page *frames[SPTE_ENT_PER_PAGE];
	struct candidate candidates[MAX_CANDIDATES];
	unsigned long small_hosts[MAX_SMALL_HOSTS];
	unsigned int nr_small_hosts;
	s64 budget_ns;
	s64 budget_pages;
	u64 budget_at;
	unsigned long ticked_at;

	u64 table[SPTE_ENT_PER_PAGE];

	unsigned int cursor;
	struct vhost_task *worker;
};

bool nested_align_in_budget(struct nested_align *state);
bool nested_align_steer(struct nested_align *state, gfn_t table_gfn,
			bool effort);

#endif /* __KVM_X86_MMU_NESTED_ALIGN_STATE_H */
