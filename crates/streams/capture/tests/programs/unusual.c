#define _GNU_SOURCE
// Touches memory in ways that programs seldom do.
#include "report.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 64

static volatile uint64_t sink;
static volatile char *memory;

static void work(int rounds)
{
	uint64_t sum = 0;

	for (int i = 0; i < rounds; i++)
		sum = sum * 31 + (uint64_t)i;
	sink = sum;
}

/* Calls itself and jumps nowhere back. */
void tree(int depth);
__asm__(".text\n"
	"tree: cmp $1, %edi\n"
	"jle 1f\n"
	"push %rdi\n"
	"dec %edi\n"
	"call tree\n"
	"mov (%rsp), %rdi\n"
	"sub $2, %edi\n"
	"call tree\n"
	"pop %rdi\n"
	"1: ret\n");

static void touch(int from, int to)
{
	for (int page = from; page < to; page += 2) {
		memory[page * PAGE] = 1;
		work(2000);
	}
}

static void *for_ever(void *argument)
{
	for (;;)
		touch(0, PAGES);
	return argument;
}

int main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[2] : "";
	int rights = strcmp(how, "unreadable") ? PROT_READ | PROT_WRITE : PROT_WRITE;

	report_to(argv[1]);
	memory = mmap(NULL, PAGES * PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	report("memory", (const void *)memory);
	if (!strcmp(how, "recursion")) {
		tree(29);
		return 0;
	}
	if (!strcmp(how, "forks")) {
		/* Each process does a tenth of what there is to do, and starts the next. */
		for (int generation = 0; generation < 9; generation++) {
			work(500000);
			if (fork() != 0) {
				wait(NULL);
				return 0;
			}
		}
		work(500000);
		return 0;
	}
	if (!strcmp(how, "programs") && argc > 3 && *argv[3] != '0') {
		/* The same in one process, by another program each time. */
		char left[] = {(char)(*argv[3] - 1), 0};

		work(500000);
		execv("/proc/self/exe", (char *[]){argv[0], argv[1], argv[2], left, NULL});
		return 1;
	}
	if (!strcmp(how, "siblings")) {
		pthread_t other;

		for (int thread = 0; thread < 2; thread++)
			pthread_create(&other, NULL, for_ever, NULL);
		for (int child = 0; child < 60; child++) {
			if (fork() == 0) {
				for (int round = 0; round < 8; round++)
					touch(0, PAGES);
				_exit(0);
			}
			wait(NULL);
		}
		_exit(0);
	}
	if (!strcmp(how, "rights")) {
		if (geteuid() == 0 && setresuid(65534, 65534, 65534))
			return 1;
		if (prctl(PR_SET_DUMPABLE, 0))
			return 2;
	}
	if (!strcmp(how, "files")) {
		struct rlimit none = {0, 0};

		if (setrlimit(RLIMIT_NOFILE, &none))
			return 1;
	}
	touch(0, PAGES);
	if (!strcmp(how, "free")) {
		if (madvise((void *)memory, PAGES * PAGE, MADV_FREE))
			return 1;
		touch(0, 10);
		/* What was stored since stays. */
		if (memory[2 * PAGE] != 1)
			return 2;
	}
	return 0;
}
