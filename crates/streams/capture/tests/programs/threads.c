/* 16 threads: each stores to a page of its own, increments a shared word, maps and unmaps. */
#include "report.h"
#include <pthread.h>
#include <sys/mman.h>

static char pages[16][4096] __attribute__((aligned(4096)));
static char shared[4096] __attribute__((aligned(4096)));

static void *work(void *page)
{
	for (int round = 0; round < 20; round++) {
		char *own = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		for (int at = 0; at < 1 << 16; at += 4096)
			own[at] = 1;
		store(page, 1000);
		munmap(own, 1 << 16);
	}
	for (int count = 0; count < 1000; count++)
		__asm__ volatile("lock incq (%0)" : : "r"(shared) : "memory");
	return 0;
}

int main(int argc, char **argv)
{
	pthread_t threads[16];

	(void)argc;
	report_to(argv[1]);
	report("pages", pages);
	report("shared", shared);
	for (int index = 0; index < 16; index++)
		if (pthread_create(&threads[index], 0, work, pages[index]))
			return 1;
	for (int index = 0; index < 16; index++)
		pthread_join(threads[index], 0);
	return *(uint64_t *)shared == 16000 ? 0 : 2;
}
