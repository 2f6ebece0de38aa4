/*
 * Waits and wakes a known number of times: sleeps of its first thread, a thread that waits for a futex and is
 * woken, and calls that never wait. What each did before is told by stores to the report's "page".
 */
#define _GNU_SOURCE
#include "report.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

enum { SLEEPS = 3, WAKES = 4 };

static int word;

static void *sleeper(void *unused)
{
	for (int n = 0; n < WAKES; n++)
		while (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0))
			;
	return unused;
}

int main(int argc, char **argv)
{
	char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct timespec time = { .tv_nsec = 5000000 };
	int ends[2], woken = 0;
	pthread_t thread;
	char byte = 0;

	(void)argc;
	report_to(argv[1]);
	report("page", page);
	store(page, 10);
	for (int n = 0; n < SLEEPS; n++)
		nanosleep(&time, 0);
	store(page, 20);
	if (pipe(ends))
		return 1;
	for (int n = 0; n < 100; n++)
		if (write(ends[1], &byte, 1) != 1 || read(ends[0], &byte, 1) != 1)
			return 2;
	store(page, 30);
	pthread_create(&thread, 0, sleeper, 0);
	for (int n = 0; n < WAKES; n++) {
		/* Until the other waits: only then is there somebody to wake. */
		do {
			nanosleep(&time, 0);
			woken += syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
		} while (woken <= n);
	}
	pthread_join(thread, 0);
	return 0;
}
