/* What the test programs tell the tests: lines in the file named by their first argument. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int report_file = -1;

static void report_to(const char *name)
{
	report_file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0666);
	if (report_file < 0)
		_exit(99);
}

static inline void report(const char *key, const void *address)
{
	char line[128];
	int length = snprintf(line, sizeof line, "%s %lx\n", key, (unsigned long)address);

	if (write(report_file, line, length) != length)
		_exit(98);
}

/* Stores `count` times 8 bytes at `to`: three instructions each time. */
static inline void store(void *to, uint64_t count)
{
	__asm__ volatile("1: movq %0, (%1)\n"
			 "dec %0\n"
			 "jnz 1b\n"
			 : "+c"(count) : "r"(to) : "memory");
}
