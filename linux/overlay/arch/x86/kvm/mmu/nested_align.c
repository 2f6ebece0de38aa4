// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Alignment of nested guests' huge pages, the host's half (xGemini, IEEE TC
 * 2024, section IV).
 *
 * L2's memory reaches the hardware through L1's table, which L1 fills with
 * whatever frames it has, and through L0's, where these are again anywhere.
 * Neither matters to L2 and L1 as long as the shadow page table leads from a
 * 2 MiB region of L2 to consecutive frames.  So L0 moves the frames behind the
 * 512 pages that a leaf table of L1 maps into a row (NEMA's host part), at the
 * fault that finds such a table whole or later from a worker (NWHPC), and lets
 * one 2 MiB SPTE stand for them (see pseudo_huge.c).
 *
 * Locks: state->lock is a mutex, taken with kvm->srcu held and no other lock;
 * it protects the buffers, the bookings and the budget.  mmu_lock nests inside
 * it and is never held while pages move.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kvm_host.h>
#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/sched/vhost_task.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/steer.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"
#include "nested_align.h"
#include "nested_align_state.h"
#include "pseudo_huge.h"

#define CREATE_TRACE_POINTS
#include "nested_align_trace.h"

static LIST_HEAD(states);
/* Protects @states, and the creation of a VM's. */
static DEFINE_MUTEX(states_lock);
static struct shrinker *booking_shrinker;

/**
 * nested_align_table - room for a leaf table of L1
 * @kvm: the VM, mmu_lock held for write
 *
 * Return: 512 entries, or NULL before nested_align_prepare().
 */
u64 *nested_align_table(struct kvm *kvm)
{
	struct nested_align *state = kvm->arch.nested_align.state;

	return state ? state->table : NULL;
}

/**
 * nested_align_fault - make a region fit at the fault that found it whole
 * @vcpu: the vCPU, in kvm->srcu, without mmu_lock
 * @table_gfn: L1's leaf table that maps the region
 *
 * The SPTEs of what moves are gone afterwards; the access faults once more and
 * finds 512 pages to map at once.  Someone else at it, or no budget: the worker
 * will see to it.
 */
void nested_align_fault(struct kvm_vcpu *vcpu, gfn_t table_gfn)
{
	struct nested_align *state = vcpu->kvm->arch.nested_align.state;

	if (!state || !mutex_trylock(&state->lock))
		return;
	if (nested_align_in_budget(state))
		nested_align_steer(state, table_gfn, false);
	mutex_unlock(&state->lock);
}

/**
 * __nested_align_enter - map what L1 was to map, before its guest faults again
 * @vcpu: the vCPU, in kvm->srcu, about to enter, an address noted as missing
 *
 * A page that is new to L2 costs two exits otherwise: one that L1 answers, and
 * one that finds L1's answer.  If L1 has not answered, nothing happens.  Only
 * read, because writing would mark the page dirty for L1; L1 says whether it
 * may be written.
 */
void __nested_align_enter(struct kvm_vcpu *vcpu)
{
	/* L1 is still at it. */
	if (vcpu->arch.mmu != &vcpu->arch.guest_mmu)
		return;

	vcpu->arch.nested_align.is_missing = false;
	if (nested_align_in_use(vcpu->kvm) &&
	    kvm_mmu_do_page_fault(vcpu, vcpu->arch.nested_align.missing,
				  PFERR_USER_MASK, true, NULL, NULL) ==
	    RET_PF_FIXED) {
		atomic64_inc((atomic64_t *)
			     &vcpu->kvm->stat.nested_align_filled);
		trace_nested_align_fill(vcpu->arch.nested_align.missing);
	}
}

/**
 * __nested_align_keep_unsync - whether L1 is still filling a leaf table
 * @vcpu: the vCPU, about to enter, an address noted as missing; mmu_lock held
 *	for write
 * @sp: an unsync shadow page
 *
 * KVM write-protects a table of L1 whenever it has read what L1 wrote there, so
 * a table costs an exit for each page that is new to L2.  The one in which L1
 * was asked to map a page is likely the one in which it will be asked next; it
 * stays unsync, read again at each entry as before.  Once it is all but full it
 * is protected: a pseudo huge page must be in step.
 *
 * A shadow page may be unsync for as long as it is read before its guest's next
 * entry, and that is due because unsync and its parents' marks stay: they must
 * not be taken away even for a moment, for other vCPUs look at them without
 * mmu_lock, see is_unsync_root().
 *
 * Asked twice of a page, first whether to protect it and then whether to take
 * its mark away: the answer must be the same, so it is only of what mmu_lock
 * and the vCPU protect.
 *
 * Return: true if @sp is to stay unsync.
 */
bool __nested_align_keep_unsync(struct kvm_vcpu *vcpu, struct kvm_mmu_page *sp)
{
	return gfn_to_gpa(sp->gfn) == vcpu->arch.nested_align.table &&
	       is_nested_leaf_sp(sp) &&
	       sp->pseudo_huge.nr_present < SPTE_ENT_PER_PAGE - 2;
}

/*
 * Whether all present SPTEs are on frames in a row, and none is kept for what
 * lacks.  That may well be on its place, too; if not, the whole is moved when it
 * is mapped.
 */
static bool is_in_place(struct nested_align *state, struct kvm_mmu_page *sp)
{
	struct align_region *region = huge_booking_find(&state->booking, sp->gfn);
	kvm_pfn_t row = 0;
	unsigned int i;

	for (i = 0; i < SPTE_ENT_PER_PAGE; i++) {
		kvm_pfn_t pfn = spte_to_pfn(sp->spt[i]);

		if (!is_shadow_present_pte(sp->spt[i]))
			continue;
		if (pfn % SPTE_ENT_PER_PAGE != i || (row && row != pfn - i))
			return false;
		row = pfn - i;
	}
	return !region || !region->block;
}

/* Most used first, then fullest. */
static int by_use(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->accessed != y->accessed)
		return y->accessed - x->accessed;
	return y->present - x->present;
}

/*
 * Whether a region is worth the worker's while: half of it is there, and it is
 * not just being filled, for what moves then would be waited for.
 */
static bool settled(struct kvm_mmu_page *sp)
{
	u16 before = sp->pseudo_huge.settled;

	sp->pseudo_huge.settled = sp->pseudo_huge.nr_present;
	return before == sp->pseudo_huge.nr_present &&
	       before >= SPTE_ENT_PER_PAGE / 2;
}

/*
 * Remembers memory that L1 maps huge for its guest, shadowed with small entries:
 * no more is needed there than a huge page of the host's.  Once: what the host
 * cannot make huge would be tried for ever.
 */
static void note_small_host(struct nested_align *state, struct kvm_mmu_page *sp)
{
	struct kvm_memory_slot *slot;
	unsigned long addr;

	if (sp->pseudo_huge.table_read || !sp->parent_ptes.val ||
	    sp->nx_huge_page_disallowed || !settled(sp) ||
	    state->nr_small_hosts == MAX_SMALL_HOSTS)
		return;
	sp->pseudo_huge.table_read = true;
	slot = __gfn_to_memslot(kvm_memslots_for_spte_role(state->kvm, sp->role),
				sp->gfn);
	if (!slot || kvm_slot_dirty_track_enabled(slot))
		return;
	addr = __gfn_to_hva_memslot(slot, sp->gfn);
	/* Else no huge page of the host's could lie as L1's does. */
	if (!(addr & ~PMD_MASK))
		state->small_hosts[state->nr_small_hosts++] = addr;
}

/* Promotes what needs no more, and collects what needs its frames moved. */
static unsigned int collect(struct nested_align *state)
{
	struct kvm *kvm = state->kvm;
	unsigned int buckets, nr = 0;
	struct kvm_mmu_page *sp;

	write_lock(&kvm->mmu_lock);
	for (buckets = 0; buckets < KVM_NUM_MMU_PAGES && nr < MAX_CANDIDATES;
	     buckets++) {
		state->cursor = (state->cursor + 1) % KVM_NUM_MMU_PAGES;
		hlist_for_each_entry(sp, &kvm->arch.mmu_page_hash[state->cursor],
				     hash_link) {
			if (sp->mmu_valid_gen != kvm->arch.mmu_valid_gen)
				continue;
			if (is_nested_split_sp(sp))
				note_small_host(state, sp);
			if (!is_nested_leaf_sp(sp) || sp->pseudo_huge.sptep ||
			    nr == MAX_CANDIDATES)
				continue;
			if (sp->pseudo_huge.nr_present == SPTE_ENT_PER_PAGE &&
			    pseudo_huge_promote(kvm, sp) != PSEUDO_HUGE_SCATTERED)
				continue;
			if (!settled(sp) || is_in_place(state, sp) ||
			    !pseudo_huge_possible(kvm, sp))
				continue;
			state->candidates[nr++] = (struct candidate) {
				.table_gfn = sp->gfn,
				.present = sp->pseudo_huge.nr_present,
				.accessed = pseudo_huge_take_accessed(sp),
			};
		}
		cond_resched_rwlock_write(&kvm->mmu_lock);
	}
	write_unlock(&kvm->mmu_lock);
	return nr;
}

/* L1 maps these huge; if the host does too, no shadow page is needed at all. */
static void collapse_small_hosts(struct nested_align *state)
{
	struct kvm *kvm = state->kvm;

	while (state->nr_small_hosts && nested_align_in_budget(state)) {
		unsigned long addr = state->small_hosts[state->nr_small_hosts - 1];
		u64 begin = ktime_get_ns();
		int err = steer_collapse(kvm->mm, addr);

		if (!err) {
			++kvm->stat.nested_align_collapsed;
			state->budget_pages -= SPTE_ENT_PER_PAGE;
		}
		trace_nested_align_collapse(addr, err);
		state->budget_ns -= ktime_get_ns() - begin;
		/* No memory for one, none for the next; the VM has no more. */
		if (err == -ENOMEM || err == -EBUSY)
			break;
		state->nr_small_hosts--;
	}
}

/* Relinks every shadow page: the feature was switched off. */
static void demote_all(struct kvm *kvm)
{
	struct kvm_mmu_page *sp;
	unsigned int i;

	write_lock(&kvm->mmu_lock);
	for (i = 0; i < KVM_NUM_MMU_PAGES; i++) {
		hlist_for_each_entry(sp, &kvm->arch.mmu_page_hash[i], hash_link)
			pseudo_huge_demote(sp, PSEUDO_HUGE_DROP);
		cond_resched_rwlock_write(&kvm->mmu_lock);
	}
	write_unlock(&kvm->mmu_lock);
}

static void scan(struct nested_align *state)
{
	struct kvm *kvm = state->kvm;
	unsigned int i, nr, steered = 0;
	u64 begin = ktime_get_ns(), took;

	nr = collect(state);
	took = ktime_get_ns() - begin;
	state->budget_ns -= took;
	kvm->stat.nested_align_scan_ns += took;
	++kvm->stat.nested_align_scans;

	sort(state->candidates, nr, sizeof(*state->candidates), by_use, NULL);
	for (i = 0; i < nr && nested_align_in_budget(state); i++)
		steered += nested_align_steer(state,
					      state->candidates[i].table_gfn,
					      true);
	collapse_small_hosts(state);
	trace_nested_align_scan(nr, steered, ktime_get_ns() - begin);
}

static bool worker(void *data)
{
	struct nested_align *state = data;
	struct kvm *kvm = state->kvm;
	unsigned int pause = nested_align_setting(kvm, NESTED_ALIGN_PERIOD_MS);
	int srcu;

	schedule_timeout(msecs_to_jiffies(pause));
	__set_current_state(TASK_RUNNING);

	srcu = srcu_read_lock(&kvm->srcu);
	mutex_lock(&state->lock);
	if (nested_align_enabled(kvm)) {
		scan(state);
		if (time_after_eq(jiffies, state->ticked_at + HZ)) {
			state->ticked_at = jiffies;
			huge_booking_tick(&state->booking);
		}
	} else {
		huge_booking_shrink(&state->booking, ULONG_MAX);
		if (READ_ONCE(kvm->stat.nested_align_pseudo_huge))
			demote_all(kvm);
	}
	mutex_unlock(&state->lock);
	srcu_read_unlock(&kvm->srcu, srcu);
	return true;
}

static void worker_killed(void *data)
{
}

/**
 * __nested_align_prepare - get a VM ready, on its first nested fault
 * @kvm: the VM; called by one of its vCPUs, whose process the worker joins
 *
 * Without memory nothing is done for the VM's guests, and nothing else fails.
 */
void __nested_align_prepare(struct kvm *kvm)
{
	struct nested_align *state;

	mutex_lock(&states_lock);
	if (kvm->arch.nested_align.state)
		goto unlock;
	/* If this fails, each fault would try again. */
	WRITE_ONCE(kvm->arch.nested_align.retry_at, jiffies + HZ);
	state = kvzalloc(sizeof(*state), GFP_KERNEL_ACCOUNT);
	if (!state)
		goto unlock;
	state->kvm = kvm;
	mutex_init(&state->lock);
	state->budget_at = ktime_get_ns();
	state->ticked_at = jiffies;
	state->worker = vhost_task_create(worker, worker_killed, state,
					  "kvm-nest-align");
	if (IS_ERR_OR_NULL(state->worker)) {
		kvfree(state);
		goto unlock;
	}
	huge_booking_init(&state->booking, kvm);
	list_add(&state->list, &states);
	/* Readers hold mmu_lock, or need no more than the pointer. */
	smp_store_release(&kvm->arch.nested_align.state, state);
	vhost_task_start(state->worker);
unlock:
	mutex_unlock(&states_lock);
}

/**
 * nested_align_destroy - give everything back
 * @kvm: the VM, with no vCPU in it any more
 */
void nested_align_destroy(struct kvm *kvm)
{
	struct nested_align *state = kvm->arch.nested_align.state;

	if (!state)
		return;
	vhost_task_stop(state->worker);
	mutex_lock(&states_lock);
	list_del(&state->list);
	mutex_unlock(&states_lock);
	write_lock(&kvm->mmu_lock);
	kvm->arch.nested_align.state = NULL;
	write_unlock(&kvm->mmu_lock);
	huge_booking_exit(&state->booking);
	kvfree(state);
}

static unsigned long count_booked(struct shrinker *shrinker,
				  struct shrink_control *sc)
{
	return huge_booking_total() ?: SHRINK_EMPTY;
}

/*
 * Memory is short: what is booked is free memory to everyone else.  Both locks
 * are only tried, for reclaim may come from an allocation under either.
 */
static unsigned long shrink_booked(struct shrinker *shrinker,
				   struct shrink_control *sc)
{
	struct nested_align *state;
	unsigned long freed = 0;

	if (!mutex_trylock(&states_lock))
		return SHRINK_STOP;
	list_for_each_entry(state, &states, list) {
		if (freed >= sc->nr_to_scan)
			break;
		if (!mutex_trylock(&state->lock))
			continue;
		freed += huge_booking_shrink(&state->booking,
					     sc->nr_to_scan - freed);
		mutex_unlock(&state->lock);
	}
	mutex_unlock(&states_lock);
	return freed;
}

/**
 * nested_align_init - once, with KVM
 *
 * Return: 0 or -ENOMEM.
 */
int nested_align_init(void)
{
	booking_shrinker = shrinker_alloc(0, "kvm-nested-align");
	if (!booking_shrinker)
		return -ENOMEM;
	booking_shrinker->count_objects = count_booked;
	booking_shrinker->scan_objects = shrink_booked;
	shrinker_register(booking_shrinker);
	return 0;
}

/**
 * nested_align_exit - the end of nested_align_init()
 */
void nested_align_exit(void)
{
	shrinker_free(booking_shrinker);
}
