/* A thread uses memory that another maps before and unmaps after, over and over at the same
 * address. They agree by spinning, without a system call that would show the order. */
#include "report.h"
#include <pthread.h>
#include <sys/mman.h>

static char *volatile offered;

/* Waits without using memory: what is seen stays small. */
static inline void pass_time(void)
{
	long count = 2000;

	__asm__ volatile("1: dec %%rcx\n"
			 "jnz 1b\n"
			 : "+c"(count));
}

static void *use(void *unused)
{
	for (;;) {
		char *page = offered;

		if (page == MAP_FAILED)
			return unused;
		if (!page) {
			pass_time();
			continue;
		}
		store(page, 100);
		__atomic_store_n(&offered, 0, __ATOMIC_SEQ_CST);
	}
}

int main(int argc, char **argv)
{
	pthread_t thread;
	char *page = 0;

	(void)argc;
	report_to(argv[1]);
	pthread_create(&thread, 0, use, 0);
	for (int round = 0; round < 300; round++) {
		page = mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		__atomic_store_n(&offered, page, __ATOMIC_SEQ_CST);
		while (offered)
			pass_time();
		munmap(page, 4096);
	}
	offered = MAP_FAILED;
	pthread_join(thread, 0);
	report("page", page);
	return 0;
}
