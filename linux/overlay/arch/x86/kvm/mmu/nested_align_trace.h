/* SPDX-License-Identifier: GPL-2.0-or-later */
#if !defined(_TRACE_KVM_NESTED_ALIGN_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_KVM_NESTED_ALIGN_H

#include <linux/tracepoint.h>

#undef TRACE_SYSTEM
#define TRACE_SYSTEM kvm_nested_align

#define nested_align_causes				\
	{ PSEUDO_HUGE_L1_WRITE, "l1_write" },		\
	{ PSEUDO_HUGE_UNSYNC, "unsync" },		\
	{ PSEUDO_HUGE_HOST, "host" },			\
	{ PSEUDO_HUGE_DROP, "drop" },			\
	{ PSEUDO_HUGE_PROTECT, "protect" },		\
	{ PSEUDO_HUGE_DIRTY_LOG, "dirty_log" },		\
	{ PSEUDO_HUGE_UPDATE, "update" },		\
	{ PSEUDO_HUGE_FAULT, "fault" },			\
	{ PSEUDO_HUGE_UNLINK, "unlink" }

/* A 2 MiB SPTE now stands for the shadow of L1's leaf table at @gfn. */
TRACE_EVENT(nested_align_promote,
	TP_PROTO(struct kvm_mmu_page *sp, u64 spte),
	TP_ARGS(sp, spte),

	TP_STRUCT__entry(
		__field(u64, gfn)
		__field(u64, spte)
	),

	TP_fast_assign(
		__entry->gfn = sp->gfn;
		__entry->spte = spte;
	),

	TP_printk("table gfn %llx spte %llx", __entry->gfn, __entry->spte)
);

/* It no longer does. */
TRACE_EVENT(nested_align_demote,
	TP_PROTO(struct kvm_mmu_page *sp, enum pseudo_huge_cause cause),
	TP_ARGS(sp, cause),

	TP_STRUCT__entry(
		__field(u64, gfn)
		__field(int, cause)
	),

	TP_fast_assign(
		__entry->gfn = sp->gfn;
		__entry->cause = cause;
	),

	TP_printk("table gfn %llx cause %s", __entry->gfn,
		  __print_symbolic(__entry->cause, nested_align_causes))
);

/* Absent SPTEs of a shadow page were filled from L1's table at @gfn. */
TRACE_EVENT(nested_align_populate,
	TP_PROTO(struct kvm_mmu_page *sp, int filled),
	TP_ARGS(sp, filled),

	TP_STRUCT__entry(
		__field(u64, gfn)
		__field(int, filled)
		__field(int, present)
	),

	TP_fast_assign(
		__entry->gfn = sp->gfn;
		__entry->filled = filled;
		__entry->present = sp->pseudo_huge.nr_present;
	),

	TP_printk("table gfn %llx filled %d present %d", __entry->gfn,
		  __entry->filled, __entry->present)
);

/* Frames behind the pages that L1's table at @gfn maps were put in a row. */
TRACE_EVENT(nested_align_steer,
	TP_PROTO(u64 gfn, u64 pfn, int wanted, int moved, u64 ns),
	TP_ARGS(gfn, pfn, wanted, moved, ns),

	TP_STRUCT__entry(
		__field(u64, gfn)
		__field(u64, pfn)
		__field(int, wanted)
		__field(int, moved)
		__field(u64, ns)
	),

	TP_fast_assign(
		__entry->gfn = gfn;
		__entry->pfn = pfn;
		__entry->wanted = wanted;
		__entry->moved = moved;
		__entry->ns = ns;
	),

	TP_printk("table gfn %llx pfn %llx wanted %d moved %d in %llu ns",
		  __entry->gfn, __entry->pfn, __entry->wanted, __entry->moved,
		  __entry->ns)
);

/* Frames from @pfn on are booked for the region of L1's table at @gfn. */
TRACE_EVENT(nested_align_book,
	TP_PROTO(u64 gfn, u64 pfn),
	TP_ARGS(gfn, pfn),

	TP_STRUCT__entry(
		__field(u64, gfn)
		__field(u64, pfn)
	),

	TP_fast_assign(
		__entry->gfn = gfn;
		__entry->pfn = pfn;
	),

	TP_printk("table gfn %llx pfn %llx", __entry->gfn, __entry->pfn)
);

/* Frames booked for the region of L1's table at @gfn were given back. */
TRACE_EVENT(nested_align_unbook,
	TP_PROTO(u64 gfn, int frames, bool timeout),
	TP_ARGS(gfn, frames, timeout),

	TP_STRUCT__entry(
		__field(u64, gfn)
		__field(int, frames)
		__field(bool, timeout)
	),

	TP_fast_assign(
		__entry->gfn = gfn;
		__entry->frames = frames;
		__entry->timeout = timeout;
	),

	TP_printk("table gfn %llx frames %d%s", __entry->gfn, __entry->frames,
		  __entry->timeout ? " after its time" : "")
);

/* The host was asked for a huge page around @addr of the VM's process. */
TRACE_EVENT(nested_align_collapse,
	TP_PROTO(unsigned long addr, int err),
	TP_ARGS(addr, err),

	TP_STRUCT__entry(
		__field(unsigned long, addr)
		__field(int, err)
	),

	TP_fast_assign(
		__entry->addr = addr;
		__entry->err = err;
	),

	TP_printk("address %lx error %d", __entry->addr, __entry->err)
);

/* What L1 mapped at @gpa was mapped before its guest faulted again. */
TRACE_EVENT(nested_align_fill,
	TP_PROTO(u64 gpa),
	TP_ARGS(gpa),

	TP_STRUCT__entry(
		__field(u64, gpa)
	),

	TP_fast_assign(
		__entry->gpa = gpa;
	),

	TP_printk("gpa %llx", __entry->gpa)
);

/* The worker looked at shadow pages. */
TRACE_EVENT(nested_align_scan,
	TP_PROTO(int candidates, int steered, u64 ns),
	TP_ARGS(candidates, steered, ns),

	TP_STRUCT__entry(
		__field(int, candidates)
		__field(int, steered)
		__field(u64, ns)
	),

	TP_fast_assign(
		__entry->candidates = candidates;
		__entry->steered = steered;
		__entry->ns = ns;
	),

	TP_printk("candidates %d steered %d in %llu ns", __entry->candidates,
		  __entry->steered, __entry->ns)
);

#endif /* _TRACE_KVM_NESTED_ALIGN_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH mmu
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE nested_align_trace

/* This part must be outside protection */
#include <trace/define_trace.h>
