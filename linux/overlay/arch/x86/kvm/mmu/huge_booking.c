// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Huge bookings (Gemini, EuroSys '23, section 4.2, in the host of xGemini).
 *
 * Frames that are consecutive are rare once memory is fragmented.  Those meant
 * for a region of which some pages are still missing are held back until the
 * guest hypervisor maps these, but not for longer than Algorithm 1 allows.
 *
 * The caller serialises everything that concerns one VM.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/gfp.h>
#include <linux/jiffies.h>
#include <linux/kvm_host.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/perf_event.h>
#include <linux/slab.h>
#include <linux/steer.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"
#include "huge_booking.h"
#include "nested_align.h"
#include "pseudo_huge.h"
#include "nested_align_trace.h"

static uint nested_align_booked_max_all = 256;
module_param(nested_align_booked_max_all, uint, 0644);
MODULE_PARM_DESC(nested_align_booked_max_all,
		 "2 MiB blocks all VMs together may have booked");

/* A booking is never shorter or longer than this. */
#define TERM_MIN	(HZ / 2)
#define TERM_MAX	(60 * HZ)

static atomic_long_t all_held = ATOMIC_LONG_INIT(0);

/**
 * huge_booking_total - frames that all VMs hold together
 *
 * Return: their number.
 */
unsigned long huge_booking_total(void)
{
	return atomic_long_read(&all_held);
}

static void account(struct huge_booking *booking, long frames)
{
	booking->nr_held += frames;
	booking->kvm->stat.nested_align_booked = booking->nr_held;
	atomic_long_add(frames, &all_held);
}

static void uncount_misses(struct huge_booking *booking)
{
	unsigned int cpu;

	for (cpu = 0; booking->counters && cpu < nr_cpu_ids; cpu++)
		if (booking->counters[cpu])
			perf_event_release_kernel(booking->counters[cpu]);
	kfree(booking->counters);
	booking->counters = NULL;
}

static void count_misses(struct huge_booking *booking)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HW_CACHE,
		.config = PERF_COUNT_HW_CACHE_DTLB |
			  PERF_COUNT_HW_CACHE_OP_READ << 8 |
			  PERF_COUNT_HW_CACHE_RESULT_MISS << 16,
		.size = sizeof(attr),
	};
	unsigned int cpu;

	if (!IS_ENABLED(CONFIG_PERF_EVENTS))
		return;
	booking->counters = kcalloc(nr_cpu_ids, sizeof(*booking->counters),
				    GFP_KERNEL);
	if (!booking->counters)
		return;
	for_each_online_cpu(cpu) {
		struct perf_event *event;

		event = perf_event_create_kernel_counter(&attr, cpu, NULL, NULL,
							 NULL);
		/* No such event, no feedback: fragmentation decides alone. */
		if (IS_ERR(event)) {
			uncount_misses(booking);
			return;
		}
		booking->counters[cpu] = event;
	}
}

/* TLB misses since the last call; 0 where they cannot be counted. */
static u64 new_misses(struct huge_booking *booking)
{
	u64 count, enabled, running, all = 0, last = booking->counted;
	unsigned int cpu;

	for (cpu = 0; booking->counters && cpu < nr_cpu_ids; cpu++) {
		if (!booking->counters[cpu])
			continue;
		count = perf_event_read_value(booking->counters[cpu], &enabled,
					      &running);
		/* It may have shared the hardware with others. */
		if (running)
			all += mul_u64_u64_div_u64(count, enabled, running);
	}
	booking->counted = all;
	/* What is scaled up can fall. */
	return all > last ? all - last : 0;
}

/**
 * huge_booking_init - begin with no bookings
 * @booking: the bookings
 * @kvm: their VM
 */
void huge_booking_init(struct huge_booking *booking, struct kvm *kvm)
{
	unsigned int term = nested_align_setting(kvm, NESTED_ALIGN_TERM_MS);

	booking->kvm = kvm;
	xa_init(&booking->regions);
	booking->term = clamp(msecs_to_jiffies(term), TERM_MIN, TERM_MAX);
	booking->grow = true;
	booking->starved_until = jiffies;
	count_misses(booking);
	new_misses(booking);
}

/**
 * huge_booking_exit - give everything back
 * @booking: the bookings
 */
void huge_booking_exit(struct huge_booking *booking)
{
	struct align_region *region;
	unsigned long gfn;

	xa_for_each(&booking->regions, gfn, region) {
		huge_booking_release(booking, region, false);
		xa_erase(&booking->regions, gfn);
		kfree(region);
	}
	xa_destroy(&booking->regions);
	uncount_misses(booking);
}

/**
 * huge_booking_find - what is known of a region
 * @booking: the VM's bookings
 * @table_gfn: L1's leaf table that maps the region
 *
 * Return: the region, NULL if it is not known.
 */
struct align_region *huge_booking_find(struct huge_booking *booking,
				       gfn_t table_gfn)
{
	return xa_load(&booking->regions, table_gfn);
}

/**
 * huge_booking_region - a region, to keep something of it
 * @booking: the VM's bookings
 * @table_gfn: L1's leaf table that maps the region
 *
 * Return: the region, new if need be; NULL without memory for that.
 */
struct align_region *huge_booking_region(struct huge_booking *booking,
					 gfn_t table_gfn)
{
	struct align_region *region = huge_booking_find(booking, table_gfn);

	if (region)
		return region;
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return NULL;
	region->table_gfn = table_gfn;
	region->retry_at = jiffies;
	if (xa_err(xa_store(&booking->regions, table_gfn, region,
			    GFP_KERNEL_ACCOUNT))) {
		kfree(region);
		return NULL;
	}
	return region;
}

/**
 * huge_booking_may - whether a VM may book more for now
 * @booking: the VM's bookings
 *
 * Return: false at a limit, or shortly after there were no frames to be had.
 */
bool huge_booking_may(struct huge_booking *booking)
{
	unsigned long limit = nested_align_setting(booking->kvm,
						   NESTED_ALIGN_BOOKED_MAX);
	unsigned long limit_all = READ_ONCE(nested_align_booked_max_all);

	return booking->nr_held + BOOKING_FRAMES <= limit * BOOKING_FRAMES &&
	       huge_booking_total() + BOOKING_FRAMES <=
	       limit_all * BOOKING_FRAMES &&
	       time_after_eq(jiffies, booking->starved_until);
}

/**
 * huge_booking_book - get 512 consecutive frames for a region
 * @booking: the VM's bookings
 * @region: the region; it has none
 * @nid: the node to have them of, or NUMA_NO_NODE for what the process's policy
 *	gives
 * @effort: whether other memory may be moved for them
 *
 * Return: whether there are some.
 */
bool huge_booking_book(struct huge_booking *booking, struct align_region *region,
		       int nid, bool effort)
{
	/* Frames one by one, for pages one by one: not a compound page. */
	gfp_t gfp = ((effort ? GFP_TRANSHUGE : GFP_TRANSHUGE_LIGHT) |
		     __GFP_NORETRY) & ~__GFP_COMP;

	if (!huge_booking_may(booking))
		return false;
	/* Counted before they are there: another VM may be at it as well. */
	account(booking, BOOKING_FRAMES);
	if (huge_booking_total() >
	    (unsigned long)READ_ONCE(nested_align_booked_max_all) * BOOKING_FRAMES) {
		account(booking, -BOOKING_FRAMES);
		return false;
	}
	if (nid == NUMA_NO_NODE)
		region->block = alloc_pages(gfp, BOOKING_ORDER);
	else
		region->block = alloc_pages_node(nid, gfp | __GFP_THISNODE,
						 BOOKING_ORDER);
	if (region->block) {
		split_page(region->block, BOOKING_ORDER);
	} else if (effort && nid != NUMA_NO_NODE) {
		/* Compaction leaves huge pages alone, even those of no use. */
		region->block = steer_take_block(booking->kvm->mm, nid,
						 &booking->cursor);
		if (region->block)
			++booking->kvm->stat.nested_align_taken;
	}
	if (!region->block) {
		account(booking, -BOOKING_FRAMES);
		if (effort)
			booking->starved_until = jiffies + HZ;
		++booking->kvm->stat.nested_align_steer_failed;
		return false;
	}
	bitmap_fill(region->held, BOOKING_FRAMES);
	region->nr_held = BOOKING_FRAMES;
	region->deadline = jiffies + booking->term;
	++booking->kvm->stat.nested_align_bookings;
	return true;
}

/**
 * huge_booking_settle - take stock after pages were moved onto booked frames
 * @booking: the VM's bookings
 * @region: the region, @held up to date
 */
void huge_booking_settle(struct huge_booking *booking,
			 struct align_region *region)
{
	unsigned int left = bitmap_weight(region->held, BOOKING_FRAMES);

	if (left < region->nr_held)
		region->deadline = jiffies + booking->term;
	account(booking, (long)left - (long)region->nr_held);
	region->nr_held = left;
	if (!left)
		region->block = NULL;
}

/**
 * huge_booking_release - give back the frames that a region does not use
 * @booking: the VM's bookings
 * @region: the region
 * @timeout: whether its time is up
 */
void huge_booking_release(struct huge_booking *booking,
			  struct align_region *region, bool timeout)
{
	unsigned int i;

	if (!region->nr_held)
		return;
	trace_nested_align_unbook(region->table_gfn, region->nr_held, timeout);
	for_each_set_bit(i, region->held, BOOKING_FRAMES)
		__free_page(region->block + i);
	bitmap_zero(region->held, BOOKING_FRAMES);
	account(booking, -(long)region->nr_held);
	region->nr_held = 0;
	region->block = NULL;
	if (timeout)
		++booking->kvm->stat.nested_align_timeouts;
	else
		++booking->kvm->stat.nested_align_reclaimed;
}

/**
 * huge_booking_shrink - give back frames that somebody needs now
 * @booking: the VM's bookings
 * @frames: how many would do
 *
 * Return: how many were given back.
 */
unsigned long huge_booking_shrink(struct huge_booking *booking,
				  unsigned long frames)
{
	unsigned long gfn, before = booking->nr_held;
	struct align_region *region;

	xa_for_each(&booking->regions, gfn, region) {
		if (before - booking->nr_held >= frames)
			break;
		huge_booking_release(booking, region, false);
	}
	return before - booking->nr_held;
}

/*
 * Algorithm 1: measure with the term as it is, then try one that is 10 % longer;
 * if that is no better measure again and try one that is 10 % shorter.  Better
 * is what made TLB misses fall and FMFI not rise, or, where no such misses are
 * counted, FMFI fall.  It is kept, and a longer one is tried next.
 */
static void adapt(struct huge_booking *booking)
{
	int fragmentation = steer_fragmentation(BOOKING_ORDER);
	u64 misses = new_misses(booking);
	bool better;

	if (!booking->trial) {
		booking->misses = misses;
		booking->fragmentation = fragmentation;
		booking->trial = booking->term;
		booking->term = clamp_t(unsigned long,
					booking->grow ? booking->term * 11 / 10 :
							booking->term * 9 / 10,
					TERM_MIN, TERM_MAX);
		return;
	}
	better = misses || booking->misses ?
		 misses < booking->misses &&
		 fragmentation <= booking->fragmentation :
		 fragmentation < booking->fragmentation;
	if (!better)
		booking->term = booking->trial;
	booking->trial = 0;
	booking->grow = better || !booking->grow;
}

/**
 * huge_booking_tick - end what has lasted long enough, and adapt how long
 * @booking: the VM's bookings
 *
 * To be called once per period P of Algorithm 1.
 */
void huge_booking_tick(struct huge_booking *booking)
{
	struct align_region *region;
	unsigned long gfn;

	xa_for_each(&booking->regions, gfn, region) {
		if (region->nr_held) {
			if (time_after(jiffies, region->deadline))
				huge_booking_release(booking, region, true);
		} else if (time_after(jiffies, region->retry_at + TERM_MAX)) {
			/* Long quiet: forget how often it was steered. */
			xa_erase(&booking->regions, gfn);
			kfree(region);
		}
	}
	adapt(booking);
}
