/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Putting the pages behind user addresses onto chosen frames. */
#ifndef _LINUX_STEER_H
#define _LINUX_STEER_H

#include <linux/types.h>

struct folio;
struct mm_struct;
struct page;

#ifdef CONFIG_STEER

/**
 * struct steer_result - what became of pages that were to be steered
 * @moved: pages that are on their frames now
 * @zeroed: those of @moved that had no page of their own before: nothing was
 *	copied
 */
struct steer_result {
	unsigned int moved;
	unsigned int zeroed;
};

struct steer_result steer_pages(struct mm_struct *mm, unsigned int nr,
				const unsigned long *addrs,
				struct page **frames);
int steer_node(struct mm_struct *mm, unsigned int nr,
	       const unsigned long *addrs);
int steer_split(struct folio *folio);
struct page *steer_take_block(struct mm_struct *mm, int nid,
			      unsigned long *cursor);
int steer_collapse(struct mm_struct *mm, unsigned long addr);
int steer_fragmentation(unsigned int order);
void steer_shield(unsigned long pfn);
void steer_unshield(unsigned long pfn);
bool steer_shielded(unsigned long pfn);
bool steer_splits(void);
bool steer_takes(void);

#else

static inline bool steer_shielded(unsigned long pfn)
{
	return false;
}

static inline bool steer_splits(void)
{
	return false;
}

static inline bool steer_takes(void)
{
	return false;
}

#endif /* CONFIG_STEER */
#endif /* _LINUX_STEER_H */
