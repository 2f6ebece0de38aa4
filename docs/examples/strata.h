/*
 * Marks for `strata run --marked` and `strata record --marked`: what lies between the first
 * strata_begin() of a program and the strata_end() after it is counted, and nothing else.
 *
 * A mark is a call of prctl(2) that every Linux kernel refuses (EINVAL), so a program with marks runs
 * without Strata as it would without marks. Any thread or process of the program may give them.
 */
#ifndef STRATA_H
#define STRATA_H

#include <sys/prctl.h>

#define STRATA_MARK 0x53545241 /* "STRA" */

static inline void strata_begin(void)
{
	prctl(STRATA_MARK, 1, 0, 0, 0);
}

static inline void strata_end(void)
{
	prctl(STRATA_MARK, 2, 0, 0, 0);
}

#endif
