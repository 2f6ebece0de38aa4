// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Program of the machine tests: maps memory at a recognisable address, touches it, asks the
 * machine's plugin to watch, and makes accesses of which every one is in the window.
 *
 * strider MIB ACCESSES [huge|nohuge]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* strata_wire::machine */
#define ARM_AT 0x5ffffffe0000UL
#define MARK_AT 0x5fffffff0000UL
#define WINDOW 0x600000000000UL

static void *map(uint64_t at, size_t bytes, int prot)
{
	void *p = mmap((void *)at, bytes, prot,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (p == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return p;
}

int main(int argc, char **argv)
{
	size_t bytes = (argc > 1 ? atol(argv[1]) : 16) << 20;
	uint64_t count = argc > 2 ? atol(argv[2]) : 100000;
	volatile uint64_t *marks = map(MARK_AT, 4096, PROT_READ | PROT_WRITE);
	uint8_t *arm = map(ARM_AT, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
	uint8_t *data = map(WINDOW, bytes, PROT_READ | PROT_WRITE);
	uint64_t state = 88172645463325252UL, sum = 0;

	if (argc > 3)
		madvise(data, bytes, strcmp(argv[3], "huge") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
	for (size_t i = 0; i < bytes; i += 4096)
		data[i] = (uint8_t)(i >> 12);
	arm[0] = 0xc3; /* ret */
	((void (*)(void))arm)();
	marks[0] = 1;
	for (uint64_t i = 0; i < count; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		uint64_t *word = (uint64_t *)(data + (state % bytes & ~7UL));

		if (state >> 62)
			sum += *(volatile uint64_t *)word;
		else
			*(volatile uint64_t *)word = state;
	}
	marks[1] = 1;
	printf("touched %zu MiB, %lu accesses, sum %lu\n", bytes >> 20, count, sum);
	return 0;
}
