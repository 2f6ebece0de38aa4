/* Stores 1000 times, then ends as argv[2] says. */
#include "report.h"
#include <signal.h>
#include <sys/resource.h>

static char buffer[4096] __attribute__((aligned(4096)));

int main(int argc, char **argv)
{
	struct rlimit no_core = { 0, 0 };

	(void)argc;
	setrlimit(RLIMIT_CORE, &no_core);
	report_to(argv[1]);
	report("buffer", buffer);
	store(buffer, 1000);
	if (!strcmp(argv[2], "segv"))
		*(volatile int *)8 = 1;
	if (!strcmp(argv[2], "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(argv[2], "term"))
		kill(getpid(), SIGTERM);
	if (!strcmp(argv[2], "busy"))
		for (;;)
			store(buffer, 1000);
	if (!strcmp(argv[2], "family")) {
		/* One that waits, one that works, none that would end by itself. */
		if (fork() == 0)
			for (;;)
				pause();
		if (fork() == 0)
			for (;;)
				store(buffer, 1000);
		report("ready", 0);
		for (;;)
			pause();
	}
	if (!strcmp(argv[2], "helpers")) {
		static char area[1024] __attribute__((aligned(64)));

		/* The emulator does both by functions that access memory, and leaves its block after the
		 * second, as dynamic linkers do when they bind a function. */
		for (int round = 0; round < 3000; round++) {
			__asm__ volatile("xsave %0" : "+m"(area) : "a"(3), "d"(0));
			__asm__ volatile("xrstor %0" : "+m"(area) : "a"(3), "d"(0));
			store(buffer, 100);
		}
		return 4;
	}
	if (!strcmp(argv[2], "daemon")) {
		if (fork() == 0) {
			setsid();
			report("ready", 0);
			for (;;)
				store(buffer, 1000);
		}
		return 3;
	}
	if (!strcmp(argv[2], "echo")) {
		char line[100];
		ssize_t length = read(0, line, sizeof line);

		if (write(1, line, length) != length || write(2, "aside\n", 6) != 6)
			return 1;
		for (int file = 3; file < 1024; file++)
			close(file);
		store(buffer, 1000);
		return 42;
	}
	return atoi(argv[2]);
}
