// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Steering a region of a nested guest: where its pages are, which frames they
 * shall have, and what moving them may cost (NEMA's host part, xGemini, IEEE TC
 * 2024, section IV).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kvm_host.h>
#include <linux/ktime.h>
#include <linux/steer.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"
#include "nested_align.h"
#include "nested_align_state.h"
#include "pseudo_huge.h"
#include "nested_align_trace.h"

/* Fills the budget up for the time that has passed, a second's worth at most. */
static void fill_budget(struct nested_align *state)
{
	struct kvm *kvm = state->kvm;
	s64 percent = nested_align_setting(kvm, NESTED_ALIGN_CPU_PERCENT);
	s64 pages = nested_align_setting(kvm, NESTED_ALIGN_PAGES_PER_SECOND);
	u64 now = ktime_get_ns();
	s64 passed = min_t(u64, now - state->budget_at, NSEC_PER_SEC);

	state->budget_at = now;
	state->budget_ns = min_t(s64, state->budget_ns + passed * percent / 100,
				 percent * NSEC_PER_SEC / 100);
	state->budget_pages = min_t(s64, state->budget_pages +
				    div_s64(passed * pages, NSEC_PER_SEC),
				    pages);
}

/**
 * nested_align_in_budget - whether more may be done for a VM now
 * @state: the VM's state, its lock held
 *
 * Return: true if both time and pages are left.
 */
bool nested_align_in_budget(struct nested_align *state)
{
	fill_budget(state);
	if (state->budget_ns > 0 && state->budget_pages > 0)
		return true;
	++state->kvm->stat.nested_align_throttled;
	return false;
}

/*
 * Reads L1's leaf table and finds where its pages are in the process.  What the
 * table says may be out of date the next moment: pages are moved then that need
 * not have been, and that is all.
 *
 * Returns the number of pages, or 0 if one of them cannot be moved.
 */
static unsigned int locate(struct nested_align *state, gfn_t table_gfn)
{
	/* EPT has no present bit: readable, writable or executable is present. */
	const u64 present = shadow_x_mask ? VMX_EPT_RWX_MASK : PT_PRESENT_MASK;
	struct kvm *kvm = state->kvm;
	unsigned int i, nr = 0;
	int err;

	/* Who would have to bring the table in first may take for ever. */
	pagefault_disable();
	err = kvm_read_guest_page(kvm, table_gfn, state->gptes, 0, PAGE_SIZE);
	pagefault_enable();
	if (err)
		return 0;
	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		gfn_t gfn = (state->gptes[i] & __PT_BASE_ADDR_MASK) >> PAGE_SHIFT;
		unsigned long addr;

		state->addrs[i] = 0;
		if (!(state->gptes[i] & present))
			continue;
		addr = gfn_to_hva(kvm, gfn);
		if (kvm_is_error_hva(addr))
			return 0;
		state->addrs[i] = addr;
		nr++;
	}
	return nr;
}

/*
 * A region that L1 or the host takes apart again and again is not worth the
 * copies; the pause doubles up to a bit over a minute.
 */
static void postpone(struct align_region *region)
{
	region->retry_at = jiffies + (HZ / 4 << min_t(u8, region->rounds, 8));
	region->rounds++;
}

/*
 * Frames for a region, on the node where its pages are: those it has booked, or
 * new ones.  Other pages may have to move for them, and that costs.
 */
static bool book(struct nested_align *state, struct align_region *region,
		 bool effort)
{
	u64 begin = ktime_get_ns();
	int node;

	if (!region->block && !huge_booking_may(&state->booking))
		return false;
	node = steer_node(state->kvm->mm, SPTE_ENT_PER_PAGE, state->addrs);
	/* The pages have moved to another node since. */
	if (region->block && node >= 0 && page_to_nid(region->block) != node)
		huge_booking_release(&state->booking, region, false);
	if (node == -EINVAL)
		postpone(region);
	else if (node == -EBUSY)
		region->retry_at = jiffies + HZ;
	else if (!region->block &&
		 huge_booking_book(&state->booking, region, node, effort))
		trace_nested_align_book(region->table_gfn,
					page_to_pfn(region->block));
	state->budget_ns -= ktime_get_ns() - begin;
	return node >= NUMA_NO_NODE && region->block;
}

/*
 * Moves those of the pages @first up to @end of a region that have an address
 * onto the frames that are booked for them.  Returns how many are there now.
 */
static unsigned int move(struct nested_align *state, struct align_region *region,
			 unsigned int first, unsigned int end)
{
	struct kvm_vm_stat *stat = &state->kvm->stat;
	u64 pfn = page_to_pfn(region->block), begin = ktime_get_ns(), took;
	struct steer_result result;
	unsigned int i, wanted = 0;

	for (i = first; i < end; i++) {
		state->frames[i] = NULL;
		if (!state->addrs[i])
			continue;
		wanted++;
		if (test_bit(i, region->held))
			state->frames[i] = region->block + i;
	}

	result = steer_pages(state->kvm->mm, end - first, &state->addrs[first],
			     &state->frames[first]);

	for (i = first; i < end; i++)
		if (state->addrs[i] && !state->frames[i])
			__clear_bit(i, region->held);
	huge_booking_settle(&state->booking, region);

	took = ktime_get_ns() - begin;
	state->budget_ns -= took;
	state->budget_pages -= result.moved;
	stat->nested_align_steered += result.moved;
	stat->nested_align_copied += result.moved - result.zeroed;
	stat->nested_align_zero_skipped += result.zeroed;
	stat->nested_align_steer_ns += took;
	trace_nested_align_steer(region->table_gfn, pfn, wanted, result.moved,
				 took);
	return result.moved;
}

/**
 * nested_align_steer - put the pages of a region onto consecutive frames
 * @state: the VM's state, its lock held
 * @table_gfn: L1's leaf table that maps the region
 * @effort: whether other memory may be moved for the frames
 *
 * Return: whether it was tried; not if the pages are too few, not to be moved to
 * one node, or were tried lately, and not without frames.
 */
bool nested_align_steer(struct nested_align *state, gfn_t table_gfn,
			bool effort)
{
	unsigned int wanted = locate(state, table_gfn);
	struct kvm *kvm = state->kvm;
	struct align_region *region;

	if (!wanted ||
	    wanted < nested_align_setting(kvm, NESTED_ALIGN_MIN_PRESENT))
		return false;
	if (wanted < SPTE_ENT_PER_PAGE &&
	    steer_fragmentation(BOOKING_ORDER) >
	    nested_align_setting(kvm, NESTED_ALIGN_MAX_FRAGMENTATION))
		return false;

	region = huge_booking_region(&state->booking, table_gfn);
	if (!region || time_before(jiffies, region->retry_at))
		return false;
	if (!book(state, region, effort))
		return false;

	postpone(region);
	/* Frames are kept for what L1 has yet to map, not for what cannot move. */
	if (!move(state, region, 0, SPTE_ENT_PER_PAGE) &&
	    wanted == SPTE_ENT_PER_PAGE)
		huge_booking_release(&state->booking, region, false);
	return true;
}

/**
 * __nested_align_place - put one page onto the frame that is booked for it
 * @vcpu: the vCPU, in kvm->srcu, without mmu_lock, about to map the page
 * @table_gfn: L1's leaf table that maps the page
 * @index: by which of its entries
 * @gfn: the page, in L1's memory
 *
 * The rest of the region is in a row already, and L1 has mapped one of those
 * that lacked.  What is in the way is left to the worker.
 */
void __nested_align_place(struct kvm_vcpu *vcpu, gfn_t table_gfn,
			  unsigned int index, gfn_t gfn)
{
	struct nested_align *state = vcpu->kvm->arch.nested_align.state;
	unsigned long addr = gfn_to_hva(vcpu->kvm, gfn);
	struct align_region *region;

	if (kvm_is_error_hva(addr) || !mutex_trylock(&state->lock))
		return;
	region = huge_booking_find(&state->booking, table_gfn);
	if (region && region->block && test_bit(index, region->held) &&
	    nested_align_in_budget(state)) {
		state->addrs[index] = addr;
		state->kvm->stat.nested_align_placed +=
			move(state, region, index, index + 1);
	}
	mutex_unlock(&state->lock);
}
