/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Huge bookings: 2 MiB of consecutive frames kept for a region of a nested
 * guest until its pages are on them, or until the time is up.
 */
#ifndef __KVM_X86_MMU_HUGE_BOOKING_H
#define __KVM_X86_MMU_HUGE_BOOKING_H

#include <linux/bitmap.h>
#include <linux/kvm_types.h>
#include <linux/xarray.h>

#define BOOKING_ORDER	9
#define BOOKING_FRAMES	(1 << BOOKING_ORDER)

struct kvm;
struct page;

/**
 * struct align_region - what is known of a 2 MiB region of a nested guest
 * @table_gfn: L1's leaf table that maps it: the region's name
 * @block: first of the consecutive frames meant for it, NULL if there are none
 * @held: those of the frames that no page is on yet
 * @nr_held: their number
 * @deadline: when they are given back (jiffies)
 * @retry_at: not to be steered before (jiffies)
 * @rounds: how often it was steered lately; the pause doubles with it
 */
struct align_region {
	gfn_t table_gfn;
	struct page *block;
	DECLARE_BITMAP(held, BOOKING_FRAMES);
	unsigned int nr_held;
	unsigned long deadline;
	unsigned long retry_at;
	u8 rounds;
};

/**
 * struct huge_booking - the bookings of a VM
 * @kvm: the VM
 * @regions: its regions by table gfn; the owner's lock protects all
 * @nr_held: frames held in all regions
 * @cursor: where in the VM's memory a huge page was last taken
 * @starved_until: no use in looking for blocks before (jiffies)
 * @term: how long frames are held without progress, Td in jiffies
 * @trial: the term before the change that is on trial, 0 if none is
 * @grow: whether the next trial is of a longer term
 * @fragmentation: FMFI at the trial's begin, per cent
 * @misses: TLB misses in the period before the trial's begin
 * @counted: TLB misses when they were last looked at
 * @counters: a counter of TLB misses per CPU; NULL where they cannot be counted
 */
struct huge_booking {
	struct kvm *kvm;
	struct xarray regions;
	unsigned long nr_held;
	unsigned long cursor;
	unsigned long starved_until;
	unsigned long term;
	unsigned long trial;
	bool grow;
	int fragmentation;
	u64 misses;
	u64 counted;
	struct perf_event **counters;
};

void huge_booking_init(struct huge_booking *booking, struct kvm *kvm);
void huge_booking_exit(struct huge_booking *booking);
struct align_region *huge_booking_find(struct huge_booking *booking,
				       gfn_t table_gfn);
struct align_region *huge_booking_region(struct huge_booking *booking,
					 gfn_t table_gfn);
bool huge_booking_may(struct huge_booking *booking);
bool huge_booking_book(struct huge_booking *booking, struct align_region *region,
		       int nid, bool effort);
void huge_booking_settle(struct huge_booking *booking,
			 struct align_region *region);
void huge_booking_release(struct huge_booking *booking,
			  struct align_region *region, bool timeout);
unsigned long huge_booking_shrink(struct huge_booking *booking,
				  unsigned long frames);
void huge_booking_tick(struct huge_booking *booking);
unsigned long huge_booking_total(void);

#endif /* __KVM_X86_MMU_HUGE_BOOKING_H */
