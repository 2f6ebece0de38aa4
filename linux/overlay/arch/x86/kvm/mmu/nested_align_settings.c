// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The switches of the alignment of nested guests, and what it may cost: module
 * parameters for all VMs, and files in a VM's debugfs directory for that one.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/debugfs.h>
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>

#include "nested_align.h"

static bool nested_align;
module_param(nested_align, bool, 0644);
MODULE_PARM_DESC(nested_align,
		 "Make nested guests' memory fit for huge pages (default off)");

static uint settings[NR_NESTED_ALIGN_SETTINGS] = {
	[NESTED_ALIGN_PERIOD_MS] = 1000,
	[NESTED_ALIGN_CPU_PERCENT] = 5,
	[NESTED_ALIGN_PAGES_PER_SECOND] = 65536,
	[NESTED_ALIGN_MIN_PRESENT] = 448,
	[NESTED_ALIGN_MAX_FRAGMENTATION] = 90,
	[NESTED_ALIGN_BOOKED_MAX] = 64,
	[NESTED_ALIGN_TERM_MS] = 5000,
};

module_param_named(nested_align_period_ms,
		   settings[NESTED_ALIGN_PERIOD_MS], uint, 0644);
MODULE_PARM_DESC(nested_align_period_ms,
		 "Pause between two scans of a VM, in milliseconds");

module_param_named(nested_align_cpu_percent,
		   settings[NESTED_ALIGN_CPU_PERCENT], uint, 0644);
MODULE_PARM_DESC(nested_align_cpu_percent,
		 "Share of one CPU a VM's pages may be moved with");

module_param_named(nested_align_pages_per_second,
		   settings[NESTED_ALIGN_PAGES_PER_SECOND], uint, 0644);
MODULE_PARM_DESC(nested_align_pages_per_second,
		 "4 KiB pages of a VM that may be moved in a second");

module_param_named(nested_align_min_present,
		   settings[NESTED_ALIGN_MIN_PRESENT], uint, 0644);
MODULE_PARM_DESC(nested_align_min_present,
		 "Pages of 512 that L1 must map before any are moved");

module_param_named(nested_align_max_fragmentation,
		   settings[NESTED_ALIGN_MAX_FRAGMENTATION], uint, 0644);
MODULE_PARM_DESC(nested_align_max_fragmentation,
		 "Per cent of free memory unfit for huge pages beyond which incomplete regions wait");

module_param_named(nested_align_booked_max,
		   settings[NESTED_ALIGN_BOOKED_MAX], uint, 0644);
MODULE_PARM_DESC(nested_align_booked_max, "2 MiB blocks a VM may have booked");

module_param_named(nested_align_term_ms,
		   settings[NESTED_ALIGN_TERM_MS], uint, 0644);
MODULE_PARM_DESC(nested_align_term_ms,
		 "How long a booking lasts at first, in milliseconds");

static const char * const names[NR_NESTED_ALIGN_SETTINGS] = {
	[NESTED_ALIGN_PERIOD_MS] = "nested_align_period_ms",
	[NESTED_ALIGN_CPU_PERCENT] = "nested_align_cpu_percent",
	[NESTED_ALIGN_PAGES_PER_SECOND] = "nested_align_pages_per_second",
	[NESTED_ALIGN_MIN_PRESENT] = "nested_align_min_present",
	[NESTED_ALIGN_MAX_FRAGMENTATION] = "nested_align_max_fragmentation",
	[NESTED_ALIGN_BOOKED_MAX] = "nested_align_booked_max",
	[NESTED_ALIGN_TERM_MS] = "nested_align_term_ms",
};

/**
 * nested_align_enabled - whether anything is to be done for a VM's guests
 * @kvm: the VM
 *
 * Return: true if both the host and the VM have it switched on.
 */
bool nested_align_enabled(struct kvm *kvm)
{
	return READ_ONCE(nested_align) && !READ_ONCE(kvm->arch.nested_align.off);
}

/**
 * nested_align_setting - what holds for a VM
 * @kvm: the VM
 * @which: the setting
 *
 * Return: the VM's own value, or that of the module's parameter if it has none.
 */
unsigned int nested_align_setting(struct kvm *kvm,
				  enum nested_align_setting which)
{
	u64 own = READ_ONCE(kvm->arch.nested_align.own[which]);

	return own ? own - 1 : READ_ONCE(settings[which]);
}

static int off_get(void *data, u64 *val)
{
	struct kvm *kvm = data;

	*val = !READ_ONCE(kvm->arch.nested_align.off);
	return 0;
}

static int off_set(void *data, u64 val)
{
	struct kvm *kvm = data;

	WRITE_ONCE(kvm->arch.nested_align.off, !val);
	return 0;
}

DEFINE_DEBUGFS_ATTRIBUTE(off_fops, off_get, off_set, "%llu\n");

/* -1 to the user: none of its own. */
static int own_get(void *data, u64 *val)
{
	u64 *own = data;

	*val = READ_ONCE(*own) - 1;
	return 0;
}

static int own_set(void *data, u64 val)
{
	u64 *own = data;

	if (val != (u64)-1 && val > UINT_MAX)
		return -EINVAL;
	WRITE_ONCE(*own, val + 1);
	return 0;
}

DEFINE_DEBUGFS_ATTRIBUTE_SIGNED(own_fops, own_get, own_set, "%lld\n");

/**
 * nested_align_create_debugfs - a VM's own switch, settings and list of pseudo
 * huge pages beside its statistics
 * @kvm: the VM
 */
void nested_align_create_debugfs(struct kvm *kvm)
{
	struct dentry *dir = kvm->debugfs_dentry;
	unsigned int i;

	debugfs_create_file("nested_align", 0644, dir, kvm, &off_fops);
	for (i = 0; i < NR_NESTED_ALIGN_SETTINGS; i++)
		debugfs_create_file(names[i], 0644, dir,
				    &kvm->arch.nested_align.own[i], &own_fops);
	nested_align_create_regions(kvm);
}
