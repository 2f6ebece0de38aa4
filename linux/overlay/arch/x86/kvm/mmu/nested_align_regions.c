// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which regions of nested guests have a pseudo huge page: a file in a VM's
 * debugfs directory, for who would otherwise see 512 small pages in L1's table
 * and not know that L0 maps them with one entry.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/debugfs.h>
#include <linux/kvm_host.h>
#include <linux/seq_file.h>

#include "mmu.h"
#include "mmu_internal.h"
#include "spte.h"
#include "nested_align.h"
#include "pseudo_huge.h"

/*
 * The topmost page of the tables that @sptep is in; @gpa becomes the address in
 * the nested guest that @sptep maps from there.
 */
static struct kvm_mmu_page *find_top(u64 *sptep, gpa_t *gpa)
{
	struct kvm_mmu_page *sp;

	*gpa = 0;
	do {
		sp = sptep_to_sp(sptep);
		*gpa |= (gpa_t)spte_index(sptep) <<
			SPTE_LEVEL_SHIFT(sp->role.level);
		sptep = only_parent(sp);
	} while (sptep);
	return sp;
}

/*
 * Whether this page is the root of a nested guest's tables, be it that no vCPU
 * runs that guest now: not what is left of tables that were zapped, not a table
 * that several others lead to, and not one of the four roots of a 32-bit L1,
 * which do not say which they are.
 */
static bool is_root(struct kvm_mmu_page *sp)
{
	return !sp->parent_ptes.val && !sp->role.invalid &&
	       sp->role.level >= PT64_ROOT_4LEVEL;
}

static void show_region(struct seq_file *m, struct kvm_mmu_page *sp)
{
	/* A page that goes unsync is demoted with mmu_lock held for read. */
	u64 *sptep = READ_ONCE(sp->pseudo_huge.sptep);
	struct kvm_mmu_page *root;
	gpa_t gpa;
	u64 spte;

	if (!sptep)
		return;
	spte = READ_ONCE(*sptep);
	if (!is_pseudo_huge_spte(spte))
		return;
	root = find_top(sptep, &gpa);
	if (is_root(root))
		seq_printf(m, "%llx %llx %llx\n", gfn_to_gpa(root->gfn), gpa,
			   spte_to_pfn(spte) << PAGE_SHIFT);
}

static void *regions_start(struct seq_file *m, loff_t *pos)
{
	struct kvm *kvm = m->private;

	return *pos < KVM_NUM_MMU_PAGES ? &kvm->arch.mmu_page_hash[*pos] : NULL;
}

static void *regions_next(struct seq_file *m, void *v, loff_t *pos)
{
	++*pos;
	return regions_start(m, pos);
}

static void regions_stop(struct seq_file *m, void *v)
{
}

/* One bucket at a time, so that mmu_lock is held for a moment only. */
static int regions_show(struct seq_file *m, void *v)
{
	struct kvm *kvm = m->private;
	struct hlist_head *bucket = v;
	struct kvm_mmu_page *sp;

	if (!hlist_empty(bucket)) {
		read_lock(&kvm->mmu_lock);
		hlist_for_each_entry(sp, bucket, hash_link)
			show_region(m, sp);
		read_unlock(&kvm->mmu_lock);
	}
	cond_resched();
	return 0;
}

static const struct seq_operations regions_sops = {
	.start = regions_start,
	.next = regions_next,
	.stop = regions_stop,
	.show = regions_show,
};
DEFINE_SEQ_ATTRIBUTE(regions);

/**
 * nested_align_create_regions - the file that lists a VM's pseudo huge pages
 * @kvm: the VM
 *
 * A line for each: L1's root table of the nested guest, the region's address in
 * that guest, and the frames' address, all in hexadecimal.  No two lines need
 * be of the same moment.
 */
void nested_align_create_regions(struct kvm *kvm)
{
	debugfs_create_file("nested_align_regions", 0400, kvm->debugfs_dentry,
			    kvm, &regions_fops);
}
